"""Requests that have to wait for more than a queue: each is answered once, or given up by one call, wherever it is."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.cache.local import LocalCache
from actors.cache.response_cache import ResponseCache
from actors.core.server_core import CoreSettings, ServerCore
from actors.mail.reply_slot import ReplySlot
from actors.model.deferred import DeferredRequests
from backends.registry import BackendRegistry
from protocol.errors import Cancelled, DeadlineExceeded, Internal, InvalidArgument, ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.reactor.replies import PendingReply, Replies
from tests.actors.core.test_server_core import PBTXT, add_model
from tests.actors.fakes import FakeBackend, fake_backend, request
from tests.actors.model.test_traffic_split import add_split
from tests.actors.test_submit import Box

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling { step [ {
  model_name: "m" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }
} ] }
"""
NO_QUEUE_TIMEOUT = PBTXT.replace("dynamic_batching {", "dynamic_batching { max_queue_delay_microseconds: 10")
SECONDS = 5.0


def asked(model: str, id: str = "", *, timeout_us: int = 0) -> InferenceRequest:
    return replace(request(1, id=id, value=3), model_name=model, timeout_microseconds=timeout_us)


class SlowCache(LocalCache):
    async def look_up(self, key: bytes) -> bytes | None:
        await trio.sleep(0.5)
        return await super().look_up(key)


@asynccontextmanager
async def serving(folder: Path, backend: type[FakeBackend], *, budget: int | None = None) -> AsyncIterator[ServerCore]:
    """The model `m`, the same with a slow cache, an ensemble and a traffic split of it."""
    add_model(folder, "m", config=NO_QUEUE_TIMEOUT)
    add_model(folder, "cached", config=PBTXT + "\nresponse_cache { enable: true }")
    add_model(folder, "ensemble", config=ENSEMBLE)
    add_split(folder, {"targets": [{"model": "m", "weight": 1}]}, "split")
    cache = ResponseCache("slow", {"size": "100000"}, {"slow": SlowCache})
    settings = CoreSettings((folder,), model_memory_budget=budget)
    core = ServerCore(settings, BackendRegistry({"fake": backend}), cache)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        await nursery.start(core.run)
        yield core
        assert not core.accepted()
        core.stop()
        nursery.cancel_scope.cancel()


KINDS = ["m", "cached", "ensemble", "split", "deadline", "leased"]


def request_of(kind: str, id: str = "") -> InferenceRequest:
    match kind:
        case "deadline":
            return asked("m", id, timeout_us=60_000_000)
        case "leased":
            return asked("m", id)
    return asked(kind, id)


def budget_of(kind: str) -> int | None:
    return 1 << 40 if kind == "leased" else None


@pytest.mark.parametrize("kind", KINDS)
async def test_every_request_is_answered_by_a_call(tmp_path: Path, kind: str, autojump_clock: MockClock) -> None:
    box = Box()
    async with serving(tmp_path, fake_backend(), budget=budget_of(kind)) as core:
        submitted = core.submit(request_of(kind, "a"), box, later=True)
        core.flush()
        await trio.sleep(2)
        (response,) = box.replies
        assert isinstance(response, InferenceResponse)
        assert (response.model_name, response.id) == (request_of(kind).model_name, "a")
        assert response.outputs[0].as_numpy().tolist() == [[3, 3]]
        assert sum(core.accepted().values()) == 1
        submitted.end()
        assert not core.accepted()
        assert (await core.infer(request_of(kind, "b"))).id == "b"


@pytest.mark.parametrize("at", [0.0, 0.25, 1.0], ids=["begun", "waiting", "running"])
@pytest.mark.parametrize("kind", KINDS)
async def test_one_call_gives_it_up(tmp_path: Path, kind: str, at: float, autojump_clock: MockClock) -> None:
    """No answer comes, the batch that runs goes on, and the server does not wait for it."""
    box = Box()
    async with serving(tmp_path, fake_backend(seconds=SECONDS), budget=budget_of(kind)) as core:
        submitted = core.submit(request_of(kind, "a"), box, later=True)
        core.flush()
        if at:
            await trio.sleep(at)
        submitted.give_up()
        assert not core.accepted()
        await trio.sleep(SECONDS * 2)
        assert core.cancel("m", "a") == 0
        assert not box.replies


@pytest.mark.parametrize("at", [0.0, 0.25, 1.0], ids=["begun", "waiting", "running"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_cancels_it_by_its_id(tmp_path: Path, kind: str, at: float, autojump_clock: MockClock) -> None:
    box = Box()
    async with serving(tmp_path, fake_backend(seconds=SECONDS), budget=budget_of(kind)) as core:
        submitted = core.submit(request_of(kind, "a"), box)
        if at:
            await trio.sleep(at)
        name = request_of(kind).model_name
        assert core.cancel(name, "a") == 1
        assert core.cancel(name, "a") == 0
        await trio.sleep(SECONDS * 2)
        (reply,) = box.replies
        assert isinstance(reply, Cancelled)
        assert f"model '{name}'" in reply.message
        submitted.end()
        assert not core.accepted()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_behind_the_answer_changes_nothing(tmp_path: Path, kind: str, autojump_clock: MockClock) -> None:
    """The answer is in the slot, and the task that waits for it has not run."""
    async with serving(tmp_path, fake_backend(), budget=budget_of(kind)) as core:
        slot = ReplySlot()
        submitted = core.submit(request_of(kind, "a"), slot)
        await trio.sleep(2)
        core.cancel(request_of(kind).model_name, "a")
        assert isinstance(await slot.receive(), InferenceResponse)
        submitted.end()
        assert not core.accepted()


class Edge(PendingReply):
    """One request of an edge, which keeps nothing of it."""

    def deliver(self) -> None:
        self.let_go().end()


@pytest.mark.slow
@pytest.mark.parametrize("is_given_up", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "refused"])
async def test_requests_leave_no_circles(
    tmp_path: Path, kind: str, is_given_up: bool, autojump_clock: MockClock
) -> None:
    """Their tensors are free with the answer, and not when garbage is looked for."""
    replies = Replies()
    async with serving(tmp_path, fake_backend(), budget=budget_of(kind)) as core, trio.open_nursery() as nursery:
        nursery.start_soon(replies.run)
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                asked = Edge(replies)
                sent = request_of("m" if kind == "refused" else kind)
                if kind == "refused":
                    sent.inputs.clear()
                asked.submitted = core.submit(sent, asked)
                if is_given_up:
                    asked.let_go().give_up()
                await trio.sleep(2)
                assert asked.submitted is None
            del asked, sent
            gc.collect()
            left = {type(found).__name__ for found in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        nursery.cancel_scope.cancel()
    assert not {name for name in left if name.endswith(("Submission", "Request", "Response", "Edge", "Tensor"))}


async def test_a_deadline_passes(tmp_path: Path, autojump_clock: MockClock) -> None:
    box = Box()
    async with serving(tmp_path, fake_backend(seconds=SECONDS)) as core:
        submitted = core.submit(asked("m", timeout_us=1_000_000), box)
        await trio.sleep(1.1)
        assert [type(reply) for reply in box.replies] == [DeadlineExceeded]
        submitted.end()


# The task itself.


@asynccontextmanager
async def deferring(failures: CallbackFailures) -> AsyncIterator[tuple[DeferredRequests, trio.CancelScope]]:
    requests = DeferredRequests("model 'm'", failures)
    async with trio.open_nursery() as nursery:
        requests.open(nursery)
        yield requests, nursery.cancel_scope
        requests.close()


def raising(error: Exception) -> Callable[[InferenceRequest], Awaitable[InferenceResponse]]:
    async def answer(request: InferenceRequest) -> InferenceResponse:
        await trio.lowlevel.checkpoint()
        raise error

    return answer


async def forever(request: InferenceRequest) -> InferenceResponse:
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize("error", [InvalidArgument("no"), ZeroDivisionError("oh")])
async def test_errors_are_answers_and_defects_are_counted(error: Exception) -> None:
    failures, box = CallbackFailures(), Box()
    async with deferring(failures) as (requests, _):
        submitted = requests.submit(request(), box, raising(error))
        await wait_all_tasks_blocked()
        submitted.end()
    (reply,) = box.replies
    if isinstance(error, ServerError):
        assert reply is error
        assert not failures.counts()
    else:
        assert isinstance(reply, Internal)
        assert "model 'm' failed unexpectedly" in reply.message
        assert failures.counts() == {"request": 1}


async def test_a_reply_channel_that_raises_ends_nothing_else() -> None:
    class Broken(Box):
        def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
            raise ZeroDivisionError

    failures, box = CallbackFailures(), Box()
    async with deferring(failures) as (requests, _):
        requests.submit(request(), Broken(), raising(InvalidArgument("no")))
        requests.submit(request(), box, raising(InvalidArgument("no")))
    assert failures.counts() == {"request": 1}
    assert len(box.replies) == 1


async def test_the_end_of_their_owner_is_their_answer() -> None:
    """But for those that were given up, also before they began."""
    box = Box()
    async with deferring(CallbackFailures()) as (requests, scope):
        requests.submit(request(), box, forever)
        requests.submit(request(), box, forever).give_up()
        await wait_all_tasks_blocked()
        requests.submit(request(), box, forever).give_up()
        scope.cancel()
    (reply,) = box.replies
    assert isinstance(reply, Unavailable)
    assert str(reply) == "model 'm' was stopped before the request was finished"
    requests.submit(request(), box, forever).end()
    assert str(box.replies[1]) == "model 'm' takes no requests now"
