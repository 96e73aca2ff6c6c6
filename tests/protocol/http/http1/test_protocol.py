"""HTTP/1 without I/O: what a client's bytes mean, however they are cut, beside what the test has written into them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.http.errors import status_of
from protocol.http.head import Head
from protocol.http.http1.events import ChangeToHttp2, Content, Refusal, Signal
from protocol.http.http1.half_close import STATUS_LINE_START
from protocol.http.http1.protocol import MAX_FRAMING_LINE, Http1Protocol
from protocol.http.http1.state import IllegalMove, Move, State

MAX_HEAD = 500
DATE = b"date: now\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\n"


@dataclass(frozen=True)
class Request:
    """As a client writes it: `noise` may come first, and `framed` is the body with its framing."""

    method: str
    target: str
    body: bytes
    head: bytes
    framed: bytes
    stays: bool
    noise: bytes = b""

    @property
    def data(self) -> bytes:
        return self.noise + self.head + self.framed


@st.composite
def requests(draw: st.DrawFn) -> Request:
    body = draw(st.binary(max_size=40))
    method = draw(st.sampled_from(["GET", "POST", "M-SEARCH"]))
    target = draw(st.sampled_from(["/", "/v2?x=1", "http://x/y"]))
    version, connection, stays = draw(
        st.sampled_from(
            [
                ("1.1", "", True),
                ("1.1", "Connection: keep-alive", True),
                ("1.1", "Connection: close", False),
                ("1.0", "", False),
                ("1.0", "Connection: keep-alive", True),
            ]
        )
    )
    framing = draw(st.sampled_from(["none", "length", "chunks"] if version == "1.1" else ["none", "length"]))
    lines = [f"{method} {target} HTTP/{version}", "Host: x"]
    framed = b""
    if connection:
        lines.append(connection)
    if framing == "none":
        body = b""
    elif framing == "length":
        lines.append(f"Content-Length: {len(body)}")
        framed = body
    else:
        lines.append("Transfer-Encoding: chunked")
        size = draw(st.integers(1, 20))
        extension = draw(st.sampled_from([b"", b";a=b", b' ; c="d"']))
        trailer = draw(st.sampled_from([b"", b"X-Sum: 1\r\n"]))
        for start in range(0, len(body), size):
            part = body[start : start + size]
            framed += b"%x%b\r\n%b\r\n" % (len(part), extension, part)
        framed += b"0\r\n" + trailer + b"\r\n"
    head = "\r\n".join([*lines, "", ""]).encode()
    noise = draw(st.sampled_from([b"", b"", b"\r\n", b"\n\r\n"]))
    return Request(method, target, body, head, framed, stays, noise)


# What may come behind some requests, and how it is answered.
BROKEN = {
    b"GARBAGE\r\n\r\n": 400,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n": 400,
    b"\x16" + b"x" * 2 * MAX_HEAD: 400,
    b"GET / HTTP/1.1\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * MAX_HEAD + b"\r\n\r\n": 431,
    b"GET /" + b"y" * MAX_HEAD: 431,
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n": 501,
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabX\r\n": 400,
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"y" * (MAX_FRAMING_LINE + 1): 431,
}


@dataclass
class Seen:
    """What a driver learns and sends: each request with its body, whether its response said that it was the last one,
    and how it ended."""

    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    said_close: list[bool] = field(default_factory=list)
    end: object = None
    state: State = State.IDLE
    rest: bytes = b""  # for HTTP/2

    def compared(self) -> object:
        return self.requests, self.said_close, self.end, self.state


class Driver:
    """Reads and answers as a connection does, but that nothing takes time. With `is_slow` a request is answered only
    when nothing more comes."""

    def __init__(self, *, is_slow: bool = False, max_requests: int = 0) -> None:
        self.protocol = Http1Protocol(MAX_HEAD, max_requests)
        self.seen = Seen()
        self._is_slow = is_slow
        self._body = b""

    def feed(self, data: bytes) -> None:
        """Some bytes, or none for the end of input."""
        if self.protocol.state is State.SWITCHED:
            self.seen.rest += data
        elif self.seen.end is None and self.protocol.state is not State.CLOSED:
            self.protocol.receive(data)
            self.go_on(may_answer=not self._is_slow)

    def finish(self) -> Seen:
        self.go_on(may_answer=True)
        self.seen.state = self.protocol.state
        return self.seen

    def go_on(self, *, may_answer: bool) -> None:
        protocol, seen = self.protocol, self.seen
        while seen.end is None and protocol.state not in (State.CLOSED, State.LINGERING, State.SWITCHED):
            event = protocol.next_event()
            match event:
                case Head():
                    self._body = b""
                    seen.requests.append((event.method, event.target.decode(), b""))
                case Content():
                    self._body += event.data
                case Refusal():
                    self.refuse(status_of(event.error))
                case ChangeToHttp2():
                    seen.end, seen.rest = (event.settings, event.headers), event.rest
                case Signal.CLIENT_GONE:
                    seen.end = event
                case Signal.NEEDS_DATA if protocol.state is not State.AWAITING:
                    self.check_bounds()
                    return
                case Signal.NEEDS_DATA | Signal.PAUSED | Signal.HALF_CLOSED | Signal.END_OF_REQUEST:
                    if not may_answer:
                        return
                    self.answer()

    def check_bounds(self) -> None:
        """Nothing is kept of a body, and of a head no more than one may have."""
        assert len(self.protocol.buffer) <= (MAX_HEAD if self.protocol.state is State.HEAD else 0)

    def answer(self) -> None:
        method, target, _ = self.seen.requests[-1]
        self.seen.requests[-1] = method, target, self._body
        head = self.protocol.begin_response(200, (), DATE, 0)
        self.seen.said_close.append(b"connection: close\r\n" in head)
        self.protocol.end_response()

    def refuse(self, status: int) -> None:
        if self.protocol.state is State.BODY:
            self.seen.requests.pop()  # how much of the body came first depends on how it was cut
        head = self.protocol.begin_refusal(status, (), DATE, 0)
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert b"connection: close\r\n" in head
        self.protocol.end_response()
        self.seen.end = status


def pieces(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for start, end in pairwise(places):
        yield data[start:end]


def expected(sent: Sequence[Request]) -> Seen:
    """Of whole requests, of which none is read behind one that does not stay."""
    seen = Seen()
    for index, request in enumerate(sent):
        seen.requests.append((request.method, request.target, request.body))
        seen.said_close.append(not request.stays)
        if not request.stays:
            more = b"".join(each.data for each in sent[index + 1 :])
            seen.state = State.LINGERING if more else State.CLOSED
            break
    return seen


CUTS = st.lists(st.integers(0, 10_000), max_size=12)
SOME = st.lists(requests(), max_size=4)


def stays(sent: Sequence[Request]) -> bool:
    return all(each.stays for each in sent)


@given(SOME, CUTS, st.booleans())
def test_requests_are_what_they_were_written_as(sent: list[Request], cuts: list[int], is_slow: bool) -> None:
    """Whatever the cuts, and whether they are pipelined."""
    driver = Driver(is_slow=is_slow)
    for piece in pieces(b"".join(each.data for each in sent), cuts):
        driver.feed(piece)
    seen, wanted = driver.finish(), expected(sent)
    if wanted.state is State.LINGERING and seen.state is State.CLOSED:
        wanted.state = State.CLOSED  # what is behind the last one had not come yet
    assert seen.compared() == wanted.compared()


@given(SOME, st.sampled_from(sorted(BROKEN)), CUTS, st.booleans())
def test_what_is_no_request_is_refused_behind_those_that_are(
    sent: list[Request], broken: bytes, cuts: list[int], is_slow: bool
) -> None:
    """With the same status, whatever the cuts; the connection ends, and lingers."""
    sent = [each for each in sent if each.stays]
    driver = Driver(is_slow=is_slow)
    for piece in pieces(b"".join(each.data for each in sent) + broken, cuts):
        driver.feed(piece)
    wanted = expected(sent)
    wanted.end, wanted.state = BROKEN[broken], State.LINGERING
    assert driver.finish().compared() == wanted.compared()


@given(SOME, requests(), st.integers(0, 10_000), CUTS, st.booleans())
def test_the_end_of_input(sent: list[Request], cut_off: Request, size: int, cuts: list[int], is_slow: bool) -> None:
    """Behind whole requests it is a half-close, and all are answered; a request that it cuts off is none."""
    sent = [each for each in sent if each.stays]
    data = cut_off.data[: size % len(cut_off.data)]
    driver = Driver(is_slow=is_slow)
    for piece in (*pieces(b"".join(each.data for each in sent) + data, cuts), b""):
        driver.feed(piece)
    seen, wanted = driver.finish(), expected(sent)
    if len(data) >= len(cut_off.noise + cut_off.head):
        seen.requests.pop()  # its head was there
    is_told = bool(sent) and is_slow and not data.strip(b"\r\n")
    if is_told:
        wanted.said_close[-1] = True
    assert seen.requests == wanted.requests
    assert seen.state in (State.CLOSED, State.LINGERING)
    assert seen.said_close == wanted.said_close or (is_told and data)
    assert seen.end in (None, Signal.CLIENT_GONE)


@given(SOME, requests(), st.integers(0, 10_000), CUTS)
def test_a_time_out(sent: list[Request], late: Request, size: int, cuts: list[int]) -> None:
    """Between two requests the connection ends without a word, within one the client is told."""
    sent = [each for each in sent if each.stays]
    data = late.data[: size % len(late.data)]
    driver = Driver()
    for piece in pieces(b"".join(each.data for each in sent) + data, cuts):
        driver.feed(piece)
    if not data.strip(b"\r\n"):
        assert driver.protocol.state is State.IDLE
        driver.protocol.end()
        assert driver.finish().compared() == (*expected(sent).compared()[:2], None, State.CLOSED)  # type: ignore[index]
        return
    is_body = len(data) >= len(late.noise + late.head)
    assert driver.protocol.state is (State.BODY if is_body else State.HEAD)
    driver.refuse(408)
    seen = driver.finish()
    assert seen.requests == expected(sent).requests
    assert (seen.end, seen.state) == (408, State.LINGERING)


@given(SOME, st.binary(max_size=20), CUTS)
def test_http_2_with_prior_knowledge(sent: list[Request], more: bytes, cuts: list[int]) -> None:
    sent = [each for each in sent if each.stays]
    driver = Driver()
    data = b"".join(each.data for each in sent)
    for piece in pieces(data + PREFACE + more, cuts):
        driver.feed(piece)
    seen = driver.finish()
    assert seen.requests == expected(sent).requests
    assert (seen.end, seen.state, seen.rest) == ((None, None), State.SWITCHED, PREFACE + more)


UPGRADE = (
    b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nX-Y: Z\r\n"
    b"HTTP2-Settings: AAMAAABk\r\n\r\n"
)


@given(st.binary(max_size=20), CUTS)
def test_an_upgrade_to_http_2(more: bytes, cuts: list[int]) -> None:
    driver = Driver()
    for piece in pieces(UPGRADE + more, cuts):
        driver.feed(piece)
    seen = driver.finish()
    headers = [(b":method", b"GET"), (b":path", b"/a"), (b":authority", b"x"), (b":scheme", b"http"), (b"x-y", b"Z")]
    assert (seen.end, seen.state, seen.rest) == ((b"AAMAAABk", headers), State.SWITCHED, more)


@given(SOME, CUTS, st.integers(1, 4), st.integers(0, 4))
def test_the_last_response_says_so(sent: list[Request], cuts: list[int], most: int, drained_behind: int) -> None:
    """That to the last request which a connection may have, and the first one to begin when it is drained."""
    sent = [each for each in sent if each.stays]
    driver = Driver(max_requests=most)
    last = min(most, drained_behind + 1)
    for request in sent:
        for piece in pieces(request.data, cuts):
            if len(driver.seen.said_close) >= drained_behind:
                driver.protocol.closes = True
            driver.feed(piece)
    seen = driver.finish()
    assert len(seen.requests) == min(len(sent), last)
    assert seen.said_close == [number == last for number in range(1, len(seen.requests) + 1)]
    assert (seen.state is State.IDLE) is (len(sent) < last)


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=5), st.booleans())
def test_a_response_of_unknown_length(parts: list[bytes], is_http_1_0: bool) -> None:
    """In chunks, as another parser reads them; HTTP/1.0 knows none, and takes the end of the connection for the end."""
    protocol = Http1Protocol(MAX_HEAD)
    protocol.receive(b"GET / HTTP/1.%d\r\nHost: x\r\nConnection: keep-alive\r\n\r\n" % (not is_http_1_0))
    protocol.next_event()
    data = protocol.begin_response(200, (), DATE)
    data += b"".join(map(protocol.frame, parts)) + protocol.end_of_body()
    protocol.end_response()
    assert protocol.state is (State.LINGERING if is_http_1_0 else State.IDLE)
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    if is_http_1_0:
        client.receive_data(b"")
    body = b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        body += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert body == b"".join(parts)


@given(st.lists(st.floats(0, 100), max_size=20), st.booleans())
def test_probes_of_a_half_closed_client_are_parts_of_its_response(waits: list[float], in_chunks: bool) -> None:
    """Before the head bytes of the status line, which is not sent twice; between chunks zeros before the next size."""
    protocol = Http1Protocol(MAX_HEAD)
    protocol.receive(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    protocol.receive(b"")
    protocol.next_event()
    assert protocol.next_event() is Signal.HALF_CLOSED
    now, sent = 0.0, b""
    if in_chunks:
        sent += protocol.begin_response(200, (), DATE)
    for wait in waits:
        now += wait
        if probe := protocol.probe(now):
            protocol.note_probe(now)
            sent += probe
            assert not protocol.probe(now)
    if not in_chunks:
        assert STATUS_LINE_START.startswith(sent)
        sent += protocol.begin_response(200, (), DATE)
    sent += protocol.frame(b"abc") + protocol.end_of_body()
    protocol.end_response()
    assert protocol.state is State.CLOSED
    assert sent.startswith(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\ndate: now\r\n\r\n")
    body = sent.partition(b"\r\n\r\n")[2]
    assert body.lstrip(b"0").removeprefix(b"3\r\nabc\r\n") == b"0\r\n\r\n"


def test_a_client_that_asks_first() -> None:
    protocol = Http1Protocol(MAX_HEAD)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    protocol.receive(head)
    assert not protocol.needs_continue
    protocol.next_event()
    assert protocol.needs_continue
    protocol.receive(b"a")
    assert not protocol.needs_continue  # it did not wait
    assert protocol.content_left == 2


def test_a_body_that_is_read_past_the_buffer() -> None:
    protocol = Http1Protocol(MAX_HEAD)
    protocol.receive(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\na")
    protocol.next_event()
    assert protocol.next_event() == Content(b"a")
    protocol.note_content(4)
    assert protocol.content_left == 0
    assert protocol.next_event() is Signal.END_OF_REQUEST
    assert protocol.state is State.AWAITING


def test_two_responses_to_one_request() -> None:
    protocol = Http1Protocol(MAX_HEAD)
    with pytest.raises(IllegalMove):
        protocol.begin_response(200, (), DATE, 0)
    protocol.receive(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    protocol.next_event()
    protocol.begin_response(200, (), DATE, 0)
    with pytest.raises(IllegalMove):
        protocol.begin_response(200, (), DATE, 0)


def test_no_probe_in_a_response_of_known_length_behind_one_in_chunks() -> None:
    """Whoever begins it: the fast path moves by itself."""
    protocol = Http1Protocol(MAX_HEAD)
    protocol.receive(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    protocol.next_event()
    protocol.begin_response(200, (), DATE)
    protocol.end_response()
    protocol.move(Move.REQUEST_READ)
    protocol.receive(b"")
    protocol.move(Move.RESPONSE_BEGUN)
    assert protocol.probe(0) == b""
