"""Streams of texts over a link, as tokens come: in order, without a task for each, whoever reads slowly or leaves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pytest
import trio

from protocol.core import InferenceCore, Respond, RespondsAtOnce
from protocol.datatypes import DataType
from protocol.edge_link.frames import Burst
from protocol.edge_link.limits import LinkLimits
from protocol.edge_link.records import INLINE_BYTES, STREAMED, TEMPLATE, WINDOW_RESPONSES
from protocol.edge_link.requests import RequestWriter
from protocol.edge_link.templates import TemplateText
from protocol.edge_link.texts import encode_text
from protocol.errors import Internal, ServerError, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from tests.protocol.edge_link.links import linked, settled
from tests.protocol.edge_link.scripted_core import ScriptedCore


def text(value: str, *, model: str = "m", finish: str = "", count: int | None = 1) -> InferenceResponse:
    """As an engine answers with one token."""
    outputs = [
        Tensor("text_output", DataType.BYTES, (1,), encode_bytes_elements([value])),
        Tensor("finish_reason", DataType.BYTES, (1,), encode_bytes_elements([finish])),
    ]
    if count is not None:
        outputs.insert(1, Tensor.from_numpy("num_output_tokens", np.array([count], np.uint32)))
    return InferenceResponse(model, 1, outputs, "r", is_final=bool(finish))


def contents(response: InferenceResponse) -> Any:
    outputs = [(each.name, each.datatype, each.shape, bytes(each.data)) for each in response.outputs]
    return response.model_name, response.model_version, response.id, response.parameters, response.is_final, outputs


class Reader(RespondsAtOnce):
    """Takes what it can at once. `refuses` so many at first; with a `failure` that is raised for each."""

    def __init__(self, refuses: int = 0, failure: Exception | None = None) -> None:
        self.refuses = refuses
        self.failure = failure
        self.at_once = 0
        self.got: list[InferenceResponse] = []

    def respond_at_once(self, response: InferenceResponse) -> bool:
        if self.failure is not None:
            raise self.failure
        if self.refuses:
            self.refuses -= 1
            return False
        self.at_once += 1
        self.got.append(response)
        return True

    async def __call__(self, response: InferenceResponse) -> None:
        if self.failure is not None:
            raise self.failure
        await trio.lowlevel.checkpoint()
        self.got.append(response)


def request(model: str = "m") -> InferenceRequest:
    return InferenceRequest(model, [], id="r")


async def give(respond: Respond, responses: Sequence[InferenceResponse]) -> bool:
    """As an instance does."""
    for response in responses:
        if not (isinstance(respond, RespondsAtOnce) and respond.respond_at_once(response)):
            await respond(response)
    return True


FORMS = {
    "of one form": [text("x" * size) for size in (1, 0, 7, 500, 16, 15)],
    "of two forms": [text("x" * size, count=1 if size % 2 else None) for size in (1, 0, 7, 500, 16, 15)],
    "with long ones": [text("x" * size) for size in (1, INLINE_BYTES, 3, INLINE_BYTES - 40, 100_000, 2)],
    "with a last one": [text("a"), text("b", finish="stop")],
    "with parameters": [
        text("a"),
        InferenceResponse("m", 1, text("b").outputs, "r", {"cached_tokens": 3}, is_final=False),
        text("c"),
    ],
    "of another id": [text("a"), InferenceResponse("m", 1, text("b").outputs, "other", is_final=False), text("c")],
    "of two models": [text("a"), text("b", model="n"), text("c", model="n"), text("d")],
    "of other views": [
        InferenceResponse("m", 1, [Tensor("F", DataType.FP32, (2, 2), memoryview(values).cast("B"))], "r", {}, False)
        for values in (np.ones((2, 2), np.float32).tobytes(), np.zeros(4, np.float32).tobytes())
    ],
    "of wrong sizes": [
        InferenceResponse("m", 1, [Tensor("F", DataType.FP32, (1,), data)], "r", {}, False)
        for data in (b"1234", b"123", b"1234")
    ],
    "of nothing": [InferenceResponse("m", 1, [], "r", is_final=False)] * 3,
}


@pytest.mark.parametrize("streams", [1, 5])
@pytest.mark.parametrize("name", FORMS)
async def test_responses_come_as_they_are(name: str, streams: int) -> None:
    core = ScriptedCore()
    expected = [contents(each) for each in FORMS[name]]

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        for response in FORMS[name]:
            await give(respond, [response])
            await trio.lowlevel.checkpoint()  # so that they take turns
        return True

    core.stream = stream
    async with linked(cast(InferenceCore, core)) as link:
        readers = [Reader(refuses=number) for number in range(streams)]
        async with trio.open_nursery() as nursery:
            for reader in readers:
                nursery.start_soon(link.core.infer_stream, request(), reader)
        assert [[contents(each) for each in reader.got] for reader in readers] == [expected] * streams


async def test_a_burst_takes_no_turn_of_a_task() -> None:
    core = ScriptedCore()
    responses = [text(str(number)) for number in range(WINDOW_RESPONSES)]

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        await settled()
        assert isinstance(respond, RespondsAtOnce)
        assert all(respond.respond_at_once(response) for response in responses)
        assert not respond.respond_at_once(text("one more than the window"))
        await settled()
        return True

    core.stream = stream
    async with linked(cast(InferenceCore, core)) as link:
        reader = Reader()
        await link.core.infer_stream(request(), reader)
        assert (len(reader.got), reader.at_once) == (WINDOW_RESPONSES, WINDOW_RESPONSES)


async def test_who_cannot_take_one_gets_the_rest_in_order() -> None:
    core = ScriptedCore()
    responses = [text(str(number)) for number in range(200)]

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        return await give(respond, responses)

    core.stream = stream
    async with linked(cast(InferenceCore, core)) as link:
        reader = Reader(refuses=3)
        await link.core.infer_stream(request(), reader)
        assert [contents(each) for each in reader.got] == [contents(each) for each in responses]


async def test_what_it_raises_is_raised_for_its_caller() -> None:
    core = ScriptedCore()

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        await give(respond, [text("a")])
        await trio.sleep_forever()
        raise AssertionError

    core.stream = stream
    async with linked(cast(InferenceCore, core)) as link:
        with pytest.raises(ZeroDivisionError):
            await link.core.infer_stream(request(), Reader(failure=ZeroDivisionError()))
        await settled()
        assert core.streams == link.server.in_flight == 0


async def test_credits_are_told_of_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    credits: list[tuple[int, int]] = []

    write = RequestWriter.write_credit

    def noted(writer: RequestWriter, number: int, responses: int, size: int) -> None:
        credits.append((responses, size))
        write(writer, number, responses, size)

    monkeypatch.setattr(RequestWriter, "write_credit", noted)
    core = ScriptedCore()

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        return await give(respond, [text("four")] * 320)

    core.stream = stream
    async with linked(cast(InferenceCore, core)) as link:
        await link.core.infer_stream(request(), Reader())
    size = sum(len(output.data) for output in text("four").outputs)
    assert {responses for responses, _ in credits} == {WINDOW_RESPONSES // 2}
    assert {each for _, each in credits} == {size * WINDOW_RESPONSES // 2}
    assert len(credits) <= 20


async def test_templates_are_numbered_again_under_a_stream() -> None:
    """By others, whose answers are of more forms than there are numbers; answers of one form stand between."""
    core = ScriptedCore()
    got: list[InferenceResponse] = []

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        for number in range(1200):
            await give(respond, [text(str(number))])
            fixed = Tensor.from_numpy("IN", np.zeros(number % 700 + 1, np.uint8))
            for each in (fixed, Tensor.from_numpy("B", np.arange(number // 700 + 1, dtype=np.uint8))):
                answer = await link.core.infer(InferenceRequest("m", [each, fixed]))
                assert [bytes(output.data) for output in answer.outputs] == [bytes(each.data), bytes(fixed.data)]
        return True

    async def respond(response: InferenceResponse) -> None:
        got.append(response)

    core.stream = stream
    async with linked(cast(InferenceCore, core)) as link:
        await link.core.infer_stream(request(), respond)
    assert [contents(each) for each in got] == [contents(text(str(number))) for number in range(1200)]


async def test_streams_and_answers_of_one_form_are_told_apart() -> None:
    core = ScriptedCore()
    data = np.arange(4, dtype=np.uint8)
    response = InferenceResponse("m", 1, [Tensor.from_numpy("IN", data)], "", is_final=False)

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        for _ in range(20):
            await give(respond, [response, response])
            await trio.lowlevel.checkpoint()
        return True

    core.stream = stream
    async with linked(cast(InferenceCore, core)) as link, trio.open_nursery() as nursery:
        readers = [Reader() for _ in range(3)]
        for reader in readers:
            nursery.start_soon(link.core.infer_stream, InferenceRequest("m", []), reader)
        for _ in range(20):
            answer = await link.core.infer(InferenceRequest("m", [Tensor.from_numpy("IN", data)]))
            assert answer.is_final
            assert bytes(answer.outputs[0].data) == bytes(data)
        await settled()
        assert [len(reader.got) for reader in readers] == [40, 40, 40]
        assert not any(each.is_final for reader in readers for each in reader.got)


@pytest.mark.parametrize("size", [5, 20_000])
async def test_what_no_message_can_hold_fails_its_stream_alone(size: int) -> None:
    core = ScriptedCore()

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        wrong = text("x" * size)
        wrong.parameters["count"] = 1 << 64
        await give(respond, [text("a"), wrong])
        return True

    core.stream = stream
    async with linked(cast(InferenceCore, core)) as link:
        reader = Reader()
        with pytest.raises(Internal, match="failed unexpectedly"):
            await link.core.infer_stream(request(), reader)
        assert len(reader.got) == 1
        assert link.server._answers.segment.blocks.is_unused
        core.stream = nothing
        await link.core.infer_stream(request(), reader)
        link.failures._counts.clear()


async def nothing(asked: InferenceRequest, respond: Respond) -> bool:
    return True


@pytest.mark.parametrize("size", [5, 20_000, 2_000_000])
async def test_an_answer_that_no_message_can_hold_fails_alone(size: int) -> None:
    core = ScriptedCore()
    core.holds = True
    async with linked(cast(InferenceCore, core)) as link:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(Internal, match="could not be sent"):
                    await link.core.infer(request())

            nursery.start_soon(ask)
            await settled()
            wrong = text("x" * size, finish="stop")
            wrong.parameters["count"] = 1 << 64
            core.submitted[0].answer(wrong)
        assert link.server._answers.segment.blocks.is_unused
        core.holds = False
        await link.core.infer(request())
        link.failures._counts.clear()


# Many, slow ones, and such that leave.

SMALL = LinkLimits(input_bytes=1 << 20, output_bytes=1 << 20, unsent_bytes=1 << 20, stall_seconds=30)


async def test_a_thousand_streams_of_which_half_do_not_read() -> None:
    """What waits for those that do not read is bounded, and holds up nobody else."""
    core = ScriptedCore()
    sent: dict[str, int] = {}

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        name = asked.id
        for number in range(100):
            await give(respond, [InferenceResponse("m", 1, text(str(number)).outputs, name, is_final=False)])
            sent[name] = number + 1
            await trio.lowlevel.checkpoint()
        return True

    async def stuck(response: InferenceResponse) -> None:
        await trio.sleep_forever()

    core.stream = stream
    async with linked(cast(InferenceCore, core), SMALL) as link:
        readers = [Reader() for _ in range(500)]
        async with trio.open_nursery() as slow:
            for number in range(500):
                slow.start_soon(link.core.infer_stream, InferenceRequest("m", [], id=f"slow{number}"), stuck)
            async with trio.open_nursery() as nursery:
                for number, reader in enumerate(readers):
                    nursery.start_soon(link.core.infer_stream, InferenceRequest("m", [], id=f"quick{number}"), reader)
            assert {len(reader.got) for reader in readers} == {100}
            await settled()
            assert {sent[f"slow{number}"] for number in range(500)} == {WINDOW_RESPONSES}
            assert link.server._wire._unsent == 0
            slow.cancel_scope.cancel()
        await settled()
        assert link.server.in_flight == core.streams == len(link.core._pending) == 0


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("passes", range(10))
async def test_a_client_may_leave_at_any_time(passes: int, at_once: bool) -> None:
    core = ScriptedCore()

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        while True:
            await give(respond, [text("a"), text("x" * 30_000)])
            await trio.lowlevel.checkpoint()

    core.stream = stream
    async with linked(cast(InferenceCore, core), SMALL) as link:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.core.infer_stream, request(), Reader(refuses=0 if at_once else 10**9))
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await settled()
        assert link.server.in_flight == core.streams == len(link.core._pending) == 0
        core.stream = nothing
        assert await link.core.infer_stream(request(), Reader())


async def test_a_core_that_ends_in_the_middle() -> None:
    core = ScriptedCore()

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        await give(respond, [text("a"), text("b")])
        await trio.sleep_forever()
        raise AssertionError

    core.stream = stream
    async with linked(cast(InferenceCore, core)) as link:
        reader, failures = Reader(refuses=1), list[ServerError]()

        async def ask() -> None:
            try:
                await link.core.infer_stream(request(), reader)
            except ServerError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await settled()
            link.server_scope.cancel()
        assert [type(error) for error in failures] == [Unavailable]
        assert len(reader.got) == 2


# A core that says what is invalid: the edge ends its side, and answers what it has.

TOKEN = TemplateText("m", 1, (("text_output", 13, (1,), -1), ("count", 8, (1,), 4)))


def frame(*numbers: int, data: bytes = b"", template: TemplateText | None = None) -> bytes:
    burst = Burst()
    if template is not None:
        burst.numbers += TEMPLATE, 0, burst.add_text(encode_text(template))
    burst.numbers += numbers
    burst.data.append(data)
    burst.data_size = len(data)
    return b"".join(burst.take())


WRONG = {
    "an unknown template": frame(STREAMED, 5, 1, 1, 0),
    "more rows than numbers": frame(STREAMED, 0, 1 << 40, template=TOKEN),
    "fewer rows than none": frame(STREAMED, 0, -1, template=TOKEN),
    "a size below nothing": frame(STREAMED, 0, 1, 1, -2, data=bytes(2), template=TOKEN),
    "a size below all": frame(STREAMED, 0, 1, 1, -20, template=TOKEN),
    "data that is not there": frame(STREAMED, 0, 1, 1, 100, data=bytes(5), template=TOKEN),
    "data that nobody names": frame(STREAMED, 0, 1, 1, 4, data=bytes(50), template=TOKEN),
    "a request that is no stream": frame(STREAMED, 0, 1, 2, 4, data=bytes(8), template=TOKEN),
    "more than the window": frame(
        *(STREAMED, 0, 2 * WINDOW_RESPONSES + 2),
        *((1, 4) * (2 * WINDOW_RESPONSES + 2)),
        data=bytes(8 * (2 * WINDOW_RESPONSES + 2)),
        template=TOKEN,
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_core_that_says_what_is_invalid(name: str) -> None:
    core = ScriptedCore()
    core.holds, core.stream = True, waits

    async def stuck(response: InferenceResponse) -> None:
        await trio.sleep_forever()

    async def ask_stream() -> None:
        with suppress(Unavailable):
            await link.core.infer_stream(request(), stuck)

    async def ask() -> None:
        with suppress(Unavailable):
            await link.core.infer(request())

    async with linked(cast(InferenceCore, core)) as link:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_stream)
            await settled()
            nursery.start_soon(ask)
            await settled()
            link.server._wire.socket.send(WRONG[name])
            await settled()
            assert link.core.problem
            nursery.cancel_scope.cancel()
        link.core._wire.problem = link.server._wire.problem = ""


async def waits(asked: InferenceRequest, respond: Respond) -> bool:
    await trio.sleep_forever()
    raise AssertionError
