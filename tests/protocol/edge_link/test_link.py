"""Both sides of a link in one process, over real sockets and memory: what crosses, and what is left when one ends."""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from protocol.core import InferenceCore, Respond, RespondsAtOnce
from protocol.datatypes import DataType
from protocol.edge_link.errors import NotLinked
from protocol.edge_link.frames import Burst
from protocol.edge_link.limits import LinkLimits
from protocol.edge_link.link_server import LinkServer
from protocol.edge_link.records import CANCEL, PLAIN, WINDOW_RESPONSES
from protocol.edge_link.requests import RequestWriter
from protocol.errors import Cancelled, Internal, InvalidArgument, NotFound, ServerError, Unavailable
from protocol.log.access_record import AccessRecord
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from protocol.origin import RequestTags
from tests.protocol.edge_link.links import Link, linked, settled, settled_with_threads
from tests.protocol.edge_link.scripted_core import ScriptedCore

SEGMENT = 1 << 20
LIMITS = LinkLimits(input_bytes=SEGMENT, output_bytes=SEGMENT, unsent_bytes=8 << 20, stall_seconds=5)


@dataclass
class Both:
    core: ScriptedCore
    link: Link

    @property
    def edge(self) -> InferenceCore:
        return self.link.core


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    core = ScriptedCore()
    async with linked(cast(InferenceCore, core), LIMITS) as link:
        yield Both(core, link)


def tensor(size: int, name: str = "IN") -> Tensor:
    return Tensor.from_numpy(name, np.arange(size, dtype=np.uint8))


def request(*tensors: Tensor, model: str = "m", id: str = "", template: object = None) -> InferenceRequest:
    return InferenceRequest(model, list(tensors) or [tensor(8)], id=id, template=template)


def contents(tensors: Sequence[Tensor]) -> list[tuple[str, DataType, tuple[int, ...], bytes]]:
    return [(each.name, each.datatype, each.shape, bytes(each.data)) for each in tensors]


REQUESTS = {
    "plain": request(),
    "nothing": InferenceRequest("m", []),
    "empty tensors": request(tensor(0), tensor(0, "B")),
    "odd sizes": request(tensor(3), tensor(5, "B"), tensor(1, "C")),
    "of texts": request(Tensor("T", DataType.BYTES, (2,), encode_bytes_elements(["a", "longer"])), tensor(3)),
    "with an id": request(id="own"),
    "in shared memory": request(tensor(100_000), tensor(50_001, "B")),
    "copied by a thread": InferenceRequest("m", [tensor(SEGMENT - 4096)]),
    "larger than shared memory": request(tensor(3 * SEGMENT)),
    "larger than what may wait": request(tensor(12 * SEGMENT)),
    "of a wrong size": request(Tensor("IN", DataType.FP32, (4,), b"123")),
    "another item size": request(Tensor("IN", DataType.FP32, (3,), np.arange(3, dtype=np.float32).data)),
    "with all": InferenceRequest(
        "m",
        [tensor(9)],
        7,
        "own",
        ("OUT",),
        {"a": 1, "b": "x", "c": True, "d": 0.5},
        "sequence",
        sequence_start=True,
        sequence_end=True,
        priority=3,
        timeout_microseconds=1000,
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("times", [1, 3])
async def test_requests_and_answers_cross_as_they_are(both: Both, name: str, times: int) -> None:
    sent = REQUESTS[name]
    for _ in range(times):  # the first has the templates with it
        answer = await both.edge.infer(sent)
        got = both.core.submitted[-1].request
        assert contents(answer.outputs) == contents(got.inputs) == contents(sent.inputs)
        assert (answer.model_name, answer.model_version, answer.id, answer.parameters) == ("m", 1, sent.id, {})
        for field in ("model_name", "model_version", "id", "requested_outputs", "parameters", "sequence_id"):
            assert getattr(got, field) == getattr(sent, field)
        for field in ("sequence_start", "sequence_end", "priority", "timeout_microseconds"):
            assert getattr(got, field) == getattr(sent, field)
    assert {submission.ending for submission in both.core.submitted} == {"answered"}
    assert both.link.server.in_flight == 0


async def test_a_template_of_the_edge_is_one_in_the_core(both: Both) -> None:
    template = object()
    for _ in range(2):
        await both.edge.infer(request(template=template))
    first, second = (submission.request.template for submission in both.core.submitted)
    assert first is second is not None


async def test_many_shapes_use_template_numbers_again(both: Both) -> None:
    for size in (*range(1, 1500), 3):
        sent = InferenceRequest("m", [tensor(size % 700), tensor(size // 700, "B")])
        answer = await both.edge.infer(sent)
        assert contents(answer.outputs) == contents(sent.inputs)


class Slot:
    """Implements `protocol.core.ReplyChannel`."""

    def __init__(self) -> None:
        self.replies: list[InferenceResponse | ServerError] = []

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        self.replies.append(value)


async def test_a_burst_reaches_the_core_before_it_begins(both: Both) -> None:
    slots = [Slot() for _ in range(64)]
    submitted = [both.edge.submit(request(), slot, later=True) for slot in slots]
    assert both.core.submitted == []
    both.edge.flush()
    await settled()
    assert both.core.flushed == [64]
    assert all(len(slot.replies) == 1 for slot in slots)
    for each in submitted:
        each.end()


async def test_whoever_does_not_say_later_need_not_flush(both: Both) -> None:
    slot = Slot()
    both.edge.submit(request(), slot).end()
    await settled()
    assert isinstance(slot.replies[0], InferenceResponse)


async def test_a_refusal_is_an_answer(both: Both) -> None:
    with pytest.raises(NotFound, match="no such model"):
        await both.edge.infer(request(model="missing"))


async def test_errors_keep_what_they_say(both: Both) -> None:
    both.core.holds = True
    error = Unavailable("not now")
    error.retry_after = 7.5
    slot = Slot()
    both.edge.submit(request(), slot)
    await settled()
    both.core.submitted[0].answer(error)
    await settled()
    (found,) = slot.replies
    assert isinstance(found, Unavailable)
    assert (found.message, found.retry_after) == ("not now", 7.5)


async def test_answers_have_parameters_and_ids_of_their_own(both: Both) -> None:
    both.core.holds = True
    slot = Slot()
    both.edge.submit(request(id="a"), slot)
    await settled()
    both.core.submitted[0].answer(InferenceResponse("m", 3, [], "b", {"x": 1}, is_final=False))
    await settled()
    (found,) = slot.replies
    assert isinstance(found, InferenceResponse)
    assert (found.id, found.parameters, found.is_final, found.model_version) == ("b", {"x": 1}, False, 3)


async def test_a_request_that_is_given_up_is_cancelled_and_not_answered(both: Both) -> None:
    both.core.holds = True
    slot = Slot()
    submitted = both.edge.submit(request(tensor(100_000)), slot)
    await settled()
    submitted.give_up()
    await settled()
    assert [each.ending for each in both.core.submitted] == ["given up"]
    both.core.submitted[0].echo()  # too late
    await settled()
    assert slot.replies == []


@pytest.mark.parametrize("passes", range(12))
@pytest.mark.parametrize("size", [8, 100_000, 3 * SEGMENT])
async def test_a_call_may_be_cancelled_at_any_time(both: Both, passes: int, size: int) -> None:
    """After so many turns of the loop; nothing is left of it in the core."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                for _ in range(passes):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            nursery.start_soon(cancel)
            await both.edge.infer(request(tensor(size)))
    await settled_with_threads()
    assert both.core.open == []
    assert both.link.server.in_flight == 0
    both.core.submitted.clear()
    gc.collect()
    await settled()
    assert both.link.core._requests.segment.blocks.is_unused
    assert (await both.edge.infer(request())).outputs


# Shared memory


async def test_memory_is_released_when_nobody_holds_it(both: Both) -> None:
    blocks = both.link.core._requests.segment.blocks
    both.core.holds = True
    slot = Slot()
    both.edge.submit(request(tensor(100_000)), slot).end()
    await settled()
    submission = both.core.submitted.pop()
    view = submission.request.inputs[0].as_numpy()[5:7]
    submission.echo()
    del submission
    await settled()
    assert not blocks.is_unused, "a model holds a part of it"
    assert view.tolist() == [5, 6]
    del view
    await settled()
    assert blocks.is_unused
    answer = slot.replies.pop()
    outputs = both.link.server._answers.segment.blocks
    assert not outputs.is_unused, "the edge holds the answer"
    del answer
    await settled()
    assert outputs.is_unused


async def test_what_is_held_too_long_keeps_nobody_from_going_on(both: Both) -> None:
    """Inputs that a model keeps, and answers that a client does not read: later ones cross all the same."""
    answers = [await both.edge.infer(request(tensor(200_000))) for _ in range(20)]
    assert len(both.core.submitted) == 20, "which hold their inputs"
    assert {bytes(answer.outputs[0].data) for answer in answers} == {bytes(tensor(200_000).data)}
    assert both.link.core._requests.segment.blocks.taken_bytes <= SEGMENT
    assert both.link.core._outputs.lent_bytes <= SEGMENT // 2


async def test_a_memory_that_was_given_back_to_the_system_can_be_used_again(both: Both) -> None:
    await both.edge.infer(request(tensor(500_000)))
    both.core.submitted.clear()
    await settled()
    segment = both.link.core._requests.segment
    while segment.trim():
        pass
    assert segment.blocks.touched == 0
    answer = await both.edge.infer(request(tensor(500_000)))
    assert bytes(answer.outputs[0].data) == bytes(tensor(500_000).data)


# Streams


def numbered(number: int, size: int = 0) -> InferenceResponse:
    return InferenceResponse("m", 1, [tensor(size)] if size else [], "r", {"number": number}, is_final=False)


class AtOnce(RespondsAtOnce):
    def __init__(self) -> None:
        self.at_once: list[InferenceResponse] = []
        self.awaited: list[InferenceResponse] = []

    async def __call__(self, response: InferenceResponse) -> None:
        self.awaited.append(response)

    def respond_at_once(self, response: InferenceResponse) -> bool:
        self.at_once.append(response)
        return True


@pytest.mark.parametrize("size", [0, 100, 60_000, 2 * SEGMENT])
@pytest.mark.parametrize("is_final", [True, False])
async def test_a_stream_comes_in_order(both: Both, size: int, is_final: bool) -> None:
    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        for number in range(100):
            response = numbered(number, size)
            if not (isinstance(respond, RespondsAtOnce) and number % 2 and respond.respond_at_once(response)):
                await respond(response)
        return is_final

    both.core.stream = stream
    got: list[InferenceResponse] = []

    async def respond(response: InferenceResponse) -> None:
        got.append(response)

    assert await both.edge.infer_stream(request(id="r"), respond) is is_final
    assert [response.parameters["number"] for response in got] == list(range(100))
    assert {sum(output.byte_size for output in response.outputs) for response in got} == {size}
    assert both.link.server.in_flight == both.core.streams == 0


async def test_responses_go_on_without_the_task_where_that_can_be(both: Both) -> None:
    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        for number in range(10):
            await respond(numbered(number))
            await settled()
        return True

    both.core.stream = stream
    respond = AtOnce()
    await both.edge.infer_stream(request(id="r"), respond)
    assert len(respond.at_once) == 10
    assert respond.awaited == []


async def test_a_slow_reader_slows_its_model_and_no_other(both: Both) -> None:
    sent = 0

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        nonlocal sent
        while True:
            await respond(numbered(sent))
            sent += 1

    both.core.stream = stream

    async def respond(response: InferenceResponse) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(both.edge.infer_stream, request(), respond)
        await settled()
        assert sent == WINDOW_RESPONSES
        assert (await both.edge.infer(request())).outputs
        nursery.cancel_scope.cancel()
    await settled()
    assert both.link.server.in_flight == both.core.streams == 0


async def test_large_responses_fill_a_window_earlier(both: Both) -> None:
    sent = 0

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        nonlocal sent
        while True:
            await respond(numbered(sent, 500_000))
            sent += 1

    both.core.stream = stream

    async def respond(response: InferenceResponse) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(both.edge.infer_stream, request(), respond)
        await settled()
        assert sent == 5, "more than two megabytes"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("at", [0, 3])
async def test_an_error_comes_behind_the_responses(both: Both, at: int) -> None:
    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        for number in range(at):
            await respond(numbered(number))
        raise InvalidArgument("in the middle")

    both.core.stream = stream
    respond = AtOnce()
    with pytest.raises(InvalidArgument, match="in the middle"):
        await both.edge.infer_stream(request(id="r"), respond)
    assert len(respond.at_once) + len(respond.awaited) == at


async def test_a_reader_that_fails_ends_its_stream(both: Both) -> None:
    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        await respond(numbered(0))
        await trio.sleep_forever()
        raise AssertionError

    both.core.stream = stream

    async def respond(response: InferenceResponse) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await both.edge.infer_stream(request(), respond)
    await settled()
    assert both.core.streams == 0


# What else a request has


class Origin:
    def tags(self, own_id: str) -> RequestTags:
        return RequestTags(f"request-{own_id}", "trace", "span", "key")


@pytest.mark.parametrize("id", ["", "x"])
async def test_log_lines_of_the_core_find_the_call(both: Both, id: str) -> None:
    sent = request(id=id)
    sent.origin = Origin()
    await both.edge.infer(sent)
    origin = both.core.submitted[0].request.origin
    assert origin is not None
    assert origin.tags("whatever") == RequestTags(f"request-{id}", "trace", "span", "key")


async def test_an_access_record_is_told_what_the_core_measures(both: Both) -> None:
    both.core.holds = True
    sent = request()
    sent.trace = record = AccessRecord()
    slot = Slot()
    both.edge.submit(sent, slot)
    await settled()
    (submission,) = both.core.submitted
    trace = submission.request.trace
    assert trace is not None
    trace.identify(4, "")
    trace.stamp("QUEUE_START", 100)
    trace.stamp("COMPUTE_START", 150)
    trace.stamp("COMPUTE_END", 250)
    trace.annotate({"trioton.batch_size": 3})
    submission.echo()
    await settled()
    assert len(slot.replies) == 1
    assert (record.version, record.queue_ns, record.compute_ns) == ("4", 50, 100)
    assert record.facts == {"trioton.batch_size": 3}


async def test_what_cannot_cross_is_refused_by_name(both: Both) -> None:
    class Elsewhere(Tensor):
        """On some device."""

    cases = {
        "caller": request(),
        "devices": request(),
        "elsewhere": request(Elsewhere("IN", DataType.UINT8, (1,), b"1")),
        "trace": request(),
    }
    cases["caller"].caller = cast(None, object())
    cases["devices"].device_outputs = frozenset({"OUT"})
    record = cases["trace"].trace = AccessRecord()
    record.trace = AccessRecord()
    for sent in cases.values():
        assert not both.link.core.can_take(sent)
        with pytest.raises(NotLinked, match="cannot cross"):
            await both.edge.infer(sent)
    assert both.link.core.can_take(request())
    assert both.core.submitted == []


# Queries and calls


async def test_what_is_kept_is_asked_again_when_the_models_have_changed(both: Both) -> None:
    for _ in range(3):
        assert both.edge.is_batching("m", 1)
    assert both.core.asked == [("m", 1)]
    both.core.batching = False
    both.link.generation.bump()
    assert not both.edge.is_batching("m", 1)


async def test_a_long_answer_to_a_query(both: Both) -> None:
    found = list(both.edge.each_statistics())
    assert len(found) == 20_000
    assert found[-1].name.startswith("model-19999-")


async def test_a_defect_in_a_query_is_its_own_only(both: Both) -> None:
    with pytest.raises(Internal, match="is_live failed unexpectedly"):
        both.edge.is_live()
    assert both.link.failures.counts() == {"edge link": 1}
    both.link.failures._counts.clear()
    assert both.edge.is_batching("m")


async def test_a_request_can_be_cancelled_by_its_id_as_soon_as_it_is_submitted(both: Both) -> None:
    both.core.holds = True
    slot = Slot()
    both.edge.submit(request(id="x"), slot, later=True)
    assert both.edge.cancel("m", "x") == 1
    await settled()
    assert isinstance(slot.replies[0], Cancelled)


async def test_a_call_is_cancelled_in_the_core(both: Both) -> None:
    async with trio.open_nursery() as nursery:

        async def unload() -> None:
            await both.edge.unload_model("m", unload_dependents=True)

        nursery.start_soon(unload)
        await settled()
        assert both.core.asked == [("m", True)]
        nursery.cancel_scope.cancel()
    await settled()
    assert both.core.asked[1:] == [("m", "cancelled")]
    assert both.link.server.in_flight == 0


# Ends


async def test_what_an_edge_has_asked_for_is_given_up_when_it_is_gone(both: Both) -> None:
    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        await trio.sleep_forever()
        raise AssertionError

    both.core.stream, both.core.holds = stream, True
    slot = Slot()
    both.edge.submit(request(tensor(100_000)), slot)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(Unavailable, match="exiting"):
                await both.edge.infer_stream(request(), AtOnce())

        nursery.start_soon(wait)
        await settled()
        assert (both.core.streams, both.link.server.in_flight) == (1, 2)
        both.link.edge_scope.cancel()
    await settled()
    assert [each.ending for each in both.core.submitted] == ["given up"]
    assert both.core.streams == both.link.server.in_flight == 0
    assert isinstance(slot.replies[0], Unavailable)


async def test_everything_is_answered_when_the_core_is_gone(both: Both) -> None:
    both.core.holds = True
    slot = Slot()
    both.edge.submit(request(), slot)
    await settled()
    both.link.server_scope.cancel()
    await settled()
    assert isinstance(slot.replies[0], Unavailable)
    for call in (both.edge.is_batching, both.edge.is_decoupled):
        with pytest.raises(Unavailable):
            call("m")
    with pytest.raises(Unavailable):
        await both.edge.infer(request())
    with pytest.raises(Unavailable):
        await both.edge.check_ready()
    with pytest.raises(Unavailable):
        await both.edge.infer_stream(request(), AtOnce())
    both.edge.flush()


def frame(*numbers: int, texts: Sequence[bytes] = (), data: Sequence[bytes] = ()) -> bytes:
    burst = Burst()
    burst.numbers += numbers
    for text in texts:
        burst.add_text(text)
    burst.data += data
    burst.data_size = sum(map(len, data))
    return b"".join(burst.take())


HOSTILE = {
    "no frame": b"GET / HTTP/1.1\r\n\r\nand so on and on and on",
    "no kind": frame(99),
    "a record that ends early": frame(CANCEL),
    "an unknown template": frame(PLAIN, 5, 1, 1, 0),
    "more requests than numbers": frame(PLAIN, 0, 2**40),
    "data that nobody names": frame(CANCEL, 1, data=[b"x"]),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_an_edge_that_sends_what_is_invalid_is_cut_off(name: str) -> None:
    ours, theirs = socket.socketpair()
    server = LinkServer(cast(InferenceCore, ScriptedCore()), ours, limits=LIMITS)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            theirs.send(HOSTILE[name])
    assert server.problem
    theirs.close()


async def test_an_edge_that_does_not_read_is_cut_off(both: Both, autojump_clock: MockClock) -> None:
    """It still sends, from a socket whose answers nobody takes."""
    core = ScriptedCore()
    ours, theirs = socket.socketpair()
    server = LinkServer(cast(InferenceCore, core), ours, limits=LIMITS)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        theirs.setblocking(False)
        for _ in range(40):
            writer = RequestWriter(both.link.core._requests.segment, lambda _: None)
            for number in range(16):
                writer.write(_next_number(), request(tensor(16_000, str(number))))
            data = b"".join(writer.take()[0])
            while data and not server.problem:
                try:
                    data = data[theirs.send(data) :]
                except (BlockingIOError, BrokenPipeError):
                    await trio.sleep(0.001)
    assert "has read nothing for 5 s" in server.problem or "bytes that wait for it" in server.problem
    assert core.open == []
    theirs.close()


_numbers = iter(range(1, 10**9))


def _next_number() -> int:
    return next(_numbers)
