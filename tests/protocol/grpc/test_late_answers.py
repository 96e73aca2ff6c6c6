"""Replies that come while their call ends, at every step of its end: they are dropped or sent, and nothing fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import trio
import trio.testing

from protocol.core import ReplyChannel, Submitted
from protocol.errors import ServerError, Unavailable
from protocol.grpc.settings import GrpcSettings
from protocol.limits.request_memory import RequestMemory
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.reactor.replies import PendingReply
from tests.protocol.grpc.caller import SERVICE, Caller, serving
from tests.protocol.grpc.client import framed
from tests.protocol.grpc.drivers import only_fast_path
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.fakes import FakeCore
from tests.protocol.grpc.inference.test_direct_infer import request_of
from tests.protocol.submitted import FakeSubmitted

COUNT = 3
LARGE = bytes(1 << 18)  # more than a client's window


@dataclass(slots=True, eq=False)
class HoldingCore(FakeCore):
    """Replies what was submitted when the test says so."""

    held: list[tuple[InferenceRequest, ReplyChannel]] = field(default_factory=list)

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> Submitted:
        submitted = FakeSubmitted(request)
        self.submitted.append(submitted)
        self.held.append((request, reply_to))
        self.came.set()
        return submitted

    def answer_one(self, number: int, reply: Callable[[InferenceRequest], InferenceResponse | ServerError]) -> None:
        """In a burst, as a model's instance does."""
        request, answer_to = self.held[number]
        assert isinstance(answer_to, PendingReply)
        answer_to.replies.begin_burst()
        answer_to.send_nowait(reply(request))
        answer_to.replies.end_burst()


def echo(request: InferenceRequest) -> InferenceResponse:
    return InferenceResponse(request.model_name, 1, request.inputs, request.id)


def large(request: InferenceRequest) -> InferenceResponse:
    (tensor,) = request.inputs
    return InferenceResponse(request.model_name, 1, [Tensor(tensor.name, tensor.datatype, (len(LARGE),), LARGE)])


class AtStep(trio.abc.Instrument):
    """Calls when the loop has run so many steps of tasks; `error` is what that raised."""

    def __init__(self, left: int, call: Callable[[], None]) -> None:
        self._left = left
        self._call = call
        self.has_called = False
        self.error: Exception | None = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left < 0 and not self.has_called:
            self.has_called = True
            try:
                self._call()
            except Exception as error:
                self.error = error


async def open_calls(peers: Caller, is_stream: bool, headers: dict[str, str]) -> int:
    """As many requests as are to be answered; gives the last call's stream."""
    if not is_stream:
        return [await peers.client.start_call(f"{SERVICE}/ModelInfer", request_of(), headers=headers) for _ in "abc"][2]
    stream = await peers.client.open(f"{SERVICE}/ModelStreamInfer", headers)
    await peers.client.send(stream, b"".join(framed(request_of()) for _ in range(COUNT)))
    return stream


async def end_call(peers: Caller, how: str, stream: int) -> None:
    assert isinstance(peers.core, HoldingCore)
    match how:
        case "reset":
            peers.client.h2.reset_stream(stream)
            await peers.client.flush()
        case "lost":
            await peers.client.transport.aclose()
        case "deadline":
            await trio.sleep(2)
        case "failed":  # the first one, and the client has asked that the stream ends by that
            peers.core.answer_one(0, lambda request: Unavailable("down"))
        case "drained":
            peers.connection.drain()
        case "cancelled":
            peers.scope.cancel()


async def run(how: str, *, is_stream: bool, is_large: bool, step: int) -> bool:
    """Whether the step came before all was quiet."""
    core = HoldingCore()
    services = replace(edge_services(core), memory=RequestMemory(1 << 40))
    headers = {"triton_grpc_error": "true"} if how == "failed" else {}
    if how == "deadline":
        headers["grpc-timeout"] = "1S"
    async with serving(services, GrpcSettings()) as peers:
        last = await open_calls(peers, is_stream, headers)
        await trio.testing.wait_all_tasks_blocked()
        assert len(core.held) == COUNT

        def answer() -> None:
            for number in range(1 if how == "failed" else 0, COUNT):
                core.answer_one(number, large if is_large else echo)

        instrument = AtStep(step, answer)
        trio.lowlevel.add_instrument(instrument)
        try:
            await end_call(peers, how, last)
            await trio.testing.wait_all_tasks_blocked()
        finally:
            trio.lowlevel.remove_instrument(instrument)
        if instrument.error is not None:
            raise instrument.error
        was_early = instrument.has_called
    if is_stream or how != "drained":
        assert all(each.ending for each in core.submitted)
    assert services.memory.held == 0
    return was_early


@only_fast_path
@pytest.mark.parametrize("how", ["reset", "lost", "deadline", "failed", "drained", "cancelled"])
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "unary"])
@pytest.mark.parametrize("is_large", [True, False], ids=["large", "small"])
def test_an_answer_at_any_step_of_an_end_fails_nothing(how: str, is_stream: bool, is_large: bool) -> None:
    """The scope of a call is cancelled, its tasks end, its nursery closes, its owner goes on: between any two of these
    an answer may come by a call."""
    for step in range(200):
        clock = trio.testing.MockClock(autojump_threshold=0)
        was_early = trio.run(lambda: run(how, is_stream=is_stream, is_large=is_large, step=step), clock=clock)  # noqa: B023
        if not was_early:
            assert step > 3
            return
    pytest.fail("the end has more steps than this test")
