"""Observed calls over a link: whatever becomes of one, it is recorded once, by the core, as without a link."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio

from protocol.core import InferenceCore, Respond
from protocol.datatypes import DataType
from protocol.edge_link.frames import Burst
from protocol.edge_link.records import OBSERVED
from protocol.edge_link.texts import encode_text
from protocol.errors import Cancelled, InvalidArgument, Unavailable
from protocol.gen_ai import CHAT, EndedCall, GenAi, GenAiCall, Generated
from protocol.http.openai.codec.tensors import TextPart
from protocol.http.openai.generation import Receiver, StreamingCore, generate_all
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from protocol.text.model import TensorNames
from tests.protocol.edge_link.links import Link, linked, settled
from tests.protocol.edge_link.scripted_core import ScriptedCore

NAMES = TensorNames()
Stream = Callable[[InferenceRequest, Respond], Awaitable[bool]]


class Calls:
    """Implements `protocol.gen_ai.GenAi`."""

    def __init__(self) -> None:
        self.recorded: list[EndedCall] = []

    def record(self, call: EndedCall) -> None:
        self.recorded.append(call)


def response(text: str, finish: str = "") -> InferenceResponse:
    texts = {NAMES.text_output: text, NAMES.finish_reason: finish}
    outputs = [Tensor(name, DataType.BYTES, (1,), encode_bytes_elements([each])) for name, each in texts.items()]
    return InferenceResponse("m", 1, outputs, "r", is_final=bool(finish))


class Choice:
    """Implements `generation.Receiver`. Wants no more than `most` pieces."""

    def __init__(self, most: int = 100) -> None:
        self.most = most
        self.parts: list[str] = []
        self.has_ended = False

    async def take(self, part: TextPart) -> bool:
        self.parts.append(part.text)
        self.has_ended = self.has_ended or bool(part.finish_reason) or len(self.parts) >= self.most
        return len(self.parts) < self.most

    def take_at_once(self, part: TextPart) -> bool:
        return False

    async def end(self) -> None:
        self.has_ended = True


class Chat:
    """One call with so many choices, as an edge has it."""

    def __init__(self, gen_ai: GenAi, choices: int = 1, most: int = 100) -> None:
        self.choices = [Choice(most) for _ in range(choices)]
        prompt = Tensor(NAMES.text_input, DataType.BYTES, (1,), encode_bytes_elements(["prompt"]))
        self.call = GenAiCall(gen_ai, CHAT, model="m", arrival_ns=time.monotonic_ns(), result=self._result)
        self.requests = [InferenceRequest("m", [prompt], id="r", gen_ai=self.call) for _ in range(choices)]

    def _result(self) -> Generated | None:
        return Generated(3, 5, ("stop",)) if all(each.has_ended for each in self.choices) else None

    async def run(self, core: StreamingCore) -> None:
        await generate_all(core, self.requests, NAMES, cast(list[Receiver], self.choices))


class Observed:
    def __init__(self, link: Link, core: ScriptedCore, calls: Calls) -> None:
        self.link = link
        self.core = core
        self.calls = calls

    def chat(self, choices: int = 1, most: int = 100) -> Chat:
        assert self.link.core.gen_ai is not None
        return Chat(self.link.core.gen_ai, choices, most)


@asynccontextmanager
async def observed(stream: Stream) -> AsyncIterator[Observed]:
    core, calls = ScriptedCore(), Calls()
    core.stream = stream
    async with linked(cast(InferenceCore, core), gen_ai=calls) as link:
        yield Observed(link, core, calls)


async def three_pieces(asked: InferenceRequest, respond: Respond) -> bool:
    """As an engine does it: the first token is there before any text of it."""
    assert asked.gen_ai is not None
    asked.gen_ai.first_token()
    await trio.sleep(0.02)
    for text in ("one", "two"):
        await respond(response(text))
    await respond(response("three", "stop"))
    asked.gen_ai.succeed(Generated(1, 2, ("stop",)))
    return True


@pytest.mark.parametrize("choices", [1, 4])
async def test_a_call_is_recorded_once_by_the_core(choices: int) -> None:
    async with observed(three_pieces) as one:
        chat = one.chat(choices)
        before = time.monotonic_ns()
        await chat.run(one.link.core)
        whole = (time.monotonic_ns() - before) / 1e9
        await settled()
        (call,) = one.calls.recorded
        assert [each.parts for each in chat.choices] == [["one", "two", "three"]] * choices
        assert (call.operation, call.request_model, call.response_model, call.error_type) == (CHAT, "m", "m", "")
        assert call.first_token_seconds is not None
        assert call.per_token_seconds is not None
        assert call.first_token_seconds + 0.02 <= call.seconds <= whole + 0.1
        assert call.per_token_seconds == pytest.approx((call.seconds - call.first_token_seconds) / 4, rel=0.01)


async def test_the_first_of_the_first_tokens_counts() -> None:
    """That of the engine, which is earlier than what the edge sees, also where its client has heard enough."""
    async with observed(three_pieces) as one:
        chat = one.chat(most=1)
        await chat.run(one.link.core)
        await settled()
        (call,) = one.calls.recorded
        assert chat.choices[0].parts == ["one"]
        assert call.error_type == ""
        assert call.first_token_seconds is not None
        assert call.first_token_seconds <= call.seconds - 0.02


async def test_a_model_without_an_engine_has_a_first_token_too() -> None:
    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        await respond(response("all", "stop"))
        return True

    async with observed(stream) as one:
        await one.chat().run(one.link.core)
        await settled()
        (call,) = one.calls.recorded
        assert call.first_token_seconds is not None


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("choices", [1, 3])
async def test_a_call_that_fails(at: int, choices: int) -> None:
    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        for _ in range(at):
            await respond(response("x"))
        raise InvalidArgument("no such thing")

    async with observed(stream) as one:
        with pytest.raises(InvalidArgument):
            await one.chat(choices).run(one.link.core)
        await settled()
        (call,) = one.calls.recorded
        assert (call.error_type, call.first_token_seconds) == (InvalidArgument.kind, None)
        assert one.link.server.in_flight == 0


@pytest.mark.parametrize("passes", range(12))
async def test_a_client_that_leaves_at_any_time(passes: int) -> None:
    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        while True:
            await respond(response("x"))
            await trio.lowlevel.checkpoint()

    async with observed(stream) as one:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.chat(2).run, one.link.core)
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await settled()
        assert [call.error_type for call in one.calls.recorded] == [Cancelled.kind]
        assert one.link.server.in_flight == one.core.streams == 0


async def test_an_edge_that_is_killed_takes_its_calls_along() -> None:
    async with observed(three_pieces) as one:
        one.core.stream = never
        async with trio.open_nursery() as nursery:
            nursery.start_soon(killed, one.chat(), one.link)
            await settled()
            one.link.edge_scope.cancel()
            await settled()
            nursery.cancel_scope.cancel()
        assert one.calls.recorded == []
        assert one.core.streams == 0


async def killed(chat: Chat, link: Link) -> None:
    with pytest.raises(Unavailable):
        await chat.run(link.core)


async def never(asked: InferenceRequest, respond: Respond) -> bool:
    await trio.sleep_forever()
    raise AssertionError


async def test_calls_that_are_not_observed() -> None:
    core = ScriptedCore()
    async with linked(cast(InferenceCore, core)) as link:
        assert link.core.gen_ai is None


def told(call: object) -> bytes:
    burst = Burst()
    burst.numbers += OBSERVED, burst.add_text(encode_text(call))
    return b"".join(burst.take())


@pytest.mark.parametrize(
    "call",
    [EndedCall(CHAT, "m", "m", "", -1.0), EndedCall(CHAT, "m", "m", "", float("nan")), [1, 2]],
)
async def test_an_edge_that_tells_of_no_call(call: object) -> None:
    core, calls = ScriptedCore(), Calls()
    async with linked(cast(InferenceCore, core), gen_ai=calls) as link:
        link.core._wire.socket.send(told(call))
        await settled()
        assert link.server.problem
        link.server._wire.problem = ""
    assert calls.recorded == []
