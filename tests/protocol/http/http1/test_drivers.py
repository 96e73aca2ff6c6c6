"""The two drivers of HTTP/1 side by side: the inline fast path answers as the task does, but for the date."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.http.app import HttpApp
from protocol.http.connections import ConnectionServer
from protocol.http.direct_infer import DirectHead, DirectInference, DirectRequest, ReplySink
from protocol.http.settings import ConnectionLimits, HttpSettings
from protocol.messages import Buffer
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.http1.test_connection import EMPTY, INFER, chunked, head, sized

LIMITS = ConnectionLimits(max_header_size=2000, header_timeout=0.6, idle_timeout=1)
DATE = re.compile(rb"date: [^\r]*\r\n")
MADE_ID = re.compile(rb"[0-9a-f]{32}")
TENSOR = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[2],"data":[1,2]}]}'
BINARY = (
    b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}],'
    b'"parameters":{"binary_data_output":true}}'
)
BINARY_LENGTH = f"Inference-Header-Content-Length: {len(BINARY)}"
PLAIN = (
    sized(INFER, EMPTY),
    sized(INFER, TENSOR),
    sized(INFER, b'{"id":"7",' + TENSOR[1:]),
    sized(INFER, BINARY + b"abcdefgh", BINARY_LENGTH),
    sized("/v2/models/broken/infer", EMPTY),
    sized("/v2/models/nobody/infer", EMPTY),
)
OTHERS = (
    sized(INFER, b"{"),
    sized("/v2/models/echo/generate", b"{}"),
    sized(INFER, EMPTY, "Expect: 100-continue"),
    head(INFER, "Transfer-Encoding: chunked") + chunked(TENSOR[:9], TENSOR[9:]),
    head("/v2/health/live", method="GET"),
    head("/v2/health/live", "Connection: keep-alive", method="GET", version="1.0"),
    head("/nowhere", method="HEAD"),
    b"\r\n" + sized(INFER, TENSOR),
)
LAST = (
    b"",
    sized(INFER, TENSOR, "Connection: close"),
    sized(INFER, TENSOR)[:-3],
    sized(INFER, TENSOR)[:30],
    sized("/nowhere", TENSOR)[:-1],
    head("/v2/health/live", method="GET", version="1.0"),
    b"GARBAGE\r\n\r\n",
    head(INFER, "X: " + "y" * 2000),
)


@dataclass(frozen=True)
class Talk:
    """What a client sends in pieces, each when the server has nothing left to do with those before, or at once. At the
    end it shuts its sending direction down, or sits there until the server has had enough."""

    pieces: Sequence[tuple[bytes, bool]]
    shuts_down: bool


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    sent = draw(
        st.lists(st.one_of(st.sampled_from(PLAIN), st.sampled_from(PLAIN), st.sampled_from(OTHERS)), max_size=5)
    )
    data = b"".join((*sent, draw(st.sampled_from(LAST))))
    places = draw(st.lists(st.integers(0, len(data)), max_size=5))
    if draw(st.booleans()):  # one request after the other
        places += [sum(map(len, sent[:index])) for index in range(len(sent) + 1)]
    places = sorted({0, len(data), *places})
    pieces = [(data[start:end], draw(st.booleans())) for start, end in pairwise(places)]
    return Talk(pieces, draw(st.booleans()))


class Counted(DirectInference):
    """Counts the requests that it takes."""

    taken = 0

    def begin(self, head: DirectHead, data: Buffer, sink: ReplySink, start: int = 0) -> DirectRequest | None:
        request = super().begin(head, data, sink, start)
        self.taken += request is not None
        return request


class Both:
    """Answers to the same client, by the task alone and with the fast path beside it."""

    def __init__(self, talk: Talk, limits: ConnectionLimits = LIMITS) -> None:
        self._talk = talk
        self._limits = limits
        self.taken = 0  # by the fast path
        self.by_task = self._answers(is_direct=False)
        self.by_both = self._answers(is_direct=True)

    def _answers(self, *, is_direct: bool) -> bytes:
        clock = trio.testing.MockClock(autojump_threshold=0.001)
        answer = trio.run(partial(self._run, is_direct=is_direct), clock=clock)
        return MADE_ID.sub(b"ID", DATE.sub(b"", answer))

    async def _run(self, *, is_direct: bool) -> bytes:
        core = FakeCore()
        services = make_services(core)
        app = HttpApp(services, HttpSettings(body_timeout=0.5))
        answer = b""
        async with trio.open_nursery() as nursery:
            direct: Counted | None = None
            if is_direct:
                core.tasks = nursery
                direct = Counted(app)
                nursery.start_soon(direct.run)
            server = ConnectionServer(app, self._limits, direct=direct)
            ours, theirs = trio.socket.socketpair()
            nursery.start_soon(server.serve, trio.SocketStream(theirs))
            nursery.start_soon(server.check_times)
            async with trio.SocketStream(ours) as client:
                nursery.start_soon(self._send, client)
                with trio.fail_after(10_000), suppress(trio.BrokenResourceError):
                    while part := await client.receive_some():
                        answer += part
            nursery.cancel_scope.cancel()
        self.taken += 0 if direct is None else direct.taken
        assert services.memory.held == 0
        services.shared_memory.close()
        return answer

    async def _send(self, client: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for data, waits in self._talk.pieces:
                await client.send_all(data)
                if waits:
                    await trio.testing.wait_all_tasks_blocked(0.0005)
            if self._talk.shuts_down:
                await client.send_eof()


def without_goodbyes(answer: bytes) -> bytes:
    """Whether the end of what a client sends is known when a response begins is a race."""
    return answer.replace(b"connection: close\r\n", b"")


@settings(max_examples=100)
@given(talks())
def test_the_same_bytes_have_the_same_answers(talk: Talk) -> None:
    both = Both(talk)
    if talk.shuts_down:
        assert without_goodbyes(both.by_both) == without_goodbyes(both.by_task)
    else:
        assert both.by_both == both.by_task


def test_both_drivers_have_something_to_do() -> None:
    """Else the test above would compare the task with itself."""
    both = Both(Talk([(request, True) for request in (*PLAIN, *OTHERS, *PLAIN, LAST[1])], shuts_down=False))
    assert both.by_both == both.by_task
    assert both.taken == 2 * len(PLAIN)


def test_a_request_in_two_pieces() -> None:
    """The fast path waits for the body behind a head that it takes, but for no head."""
    request = PLAIN[1]
    body = request.index(b"\r\n\r\n") + 4
    for cut, taken in ((body, 1), (body + 5, 1), (body - 1, 0), (1, 0)):
        both = Both(Talk([(request[:cut], True), (request[cut:], True), (LAST[1], True)], shuts_down=False))
        assert both.by_both == both.by_task
        assert both.taken == taken


def test_the_last_request_that_a_connection_may_have() -> None:
    limits = ConnectionLimits(max_requests_per_connection=3)
    both = Both(Talk([(request, True) for request in PLAIN], shuts_down=False), limits)
    assert both.by_both == both.by_task
    assert both.taken == 2
    assert both.by_both.count(b"HTTP/1.1 200 OK") == 3
    assert both.by_both.count(b"connection: close") == 1
