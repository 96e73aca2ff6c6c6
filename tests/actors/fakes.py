"""What the tests of the actors share: a backend that needs no framework, and requests for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import trio

from actors.mail.messages import QueuedRequest, ShapeKey
from actors.mail.reply_slot import Reply
from backends.interface import (
    STARTED,
    Backend,
    BatchResult,
    BatchTiming,
    InstanceDied,
    InstanceSpec,
    ModelSource,
    Started,
)
from protocol.datatypes import DataType
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import (
    InstanceKind,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
)

TIMING = BatchTiming(compute_input_ns=1, compute_infer_ns=2, compute_output_ns=3)

CONFIG = ModelConfig(
    name="m",
    backend="fake",
    max_batch_size=4,
    input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(2,)),),
    output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(2,)),),
    dynamic_batching=ModelDynamicBatching(),
)


def tensor(rows: int = 1, *, name: str = "IN", value: float = 0.0) -> Tensor:
    return Tensor.from_numpy(name, np.full((rows, 2), value, dtype=np.float32))


def request(rows: int = 1, *, id: str = "", value: float = 0.0) -> InferenceRequest:
    return InferenceRequest("m", [tensor(rows, value=value)], id=id)


class Caller:
    """A queued request together with the end at which its answer arrives."""

    def __init__(self, size: int = 1, *, arrival: float = 0.0, key: ShapeKey = None, id: str = "") -> None:
        reply, self.answers = trio.open_memory_channel[Reply](1)
        self.item = QueuedRequest(request(size, id=id), size, key, arrival, reply)

    def answer(self) -> Reply | None:
        """The answer, if it is there."""
        try:
            return self.answers.receive_nowait()
        except trio.WouldBlock:
            return None


def spec(config: ModelConfig = CONFIG, *, name: str = "m_0") -> InstanceSpec:
    return InstanceSpec(ModelSource(config.name, 1, Path("/nowhere"), config), name, InstanceKind.CPU)


class FakeBackend(Backend):
    """Replies OUT = IN after `seconds` of Trio's clock; what else it does is set on the class of the test."""

    seconds: float = 0.0
    batches: list[list[str]]
    on_load: Callable[[FakeBackend], None] | None = None
    on_execute: Callable[[FakeBackend, Sequence[InferenceRequest]], None] | None = None

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self.died = trio.Event()
        type(self).made.append(self)
        self.is_loaded = False
        self.unloads = 0

    made: list[FakeBackend]

    async def load(self) -> None:
        await trio.lowlevel.checkpoint()
        on_load = type(self).on_load
        if on_load is not None:
            on_load(self)
        self.is_loaded = True

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        type(self).batches.append([request.id for request in requests])
        await trio.sleep(self.seconds)
        on_execute = type(self).on_execute
        if on_execute is not None:
            on_execute(self, requests)
        return BatchResult(
            [
                InferenceResponse(
                    r.model_name, 1, [Tensor("OUT", r.inputs[0].datatype, r.inputs[0].shape, r.inputs[0].data)], id=r.id
                )
                for r in requests
            ],
            TIMING,
        )

    async def wait_died(self) -> None:
        await self.died.wait()

    async def unload(self) -> None:
        self.unloads += 1
        self.is_loaded = False

    def die(self) -> InstanceDied:
        """As a worker process that ends by itself."""
        self.died.set()
        return InstanceDied("the worker has died")


class FakeBackendOfTasks(FakeBackend):
    """One that can run batches in tasks of its own, which end when it dies."""

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self.tasks: trio.Nursery | None = None

    async def attend(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self.tasks:
            task_status.started()
            await self.died.wait()
            self.tasks.cancel_scope.cancel()

    def begin_in_task(
        self, requests: Sequence[InferenceRequest], done: Callable[[BatchResult | Exception], None]
    ) -> Started:
        """Begin a batch, for `begin`."""
        assert self.tasks is not None
        self.tasks.start_soon(self._end_later, requests, done)
        return STARTED

    async def _end_later(
        self, requests: Sequence[InferenceRequest], done: Callable[[BatchResult | Exception], None]
    ) -> None:
        try:
            result: BatchResult | Exception = await self.execute(requests)
        except ServerError as error:
            result = error
        done(result)


def fake_backend(
    *,
    seconds: float = 0.0,
    on_load: Callable[[FakeBackend], None] | None = None,
    on_execute: Callable[[FakeBackend, Sequence[InferenceRequest]], None] | None = None,
) -> type[FakeBackend]:
    """A backend class of its own for one test, so that no state outlives it."""
    attributes = {
        "seconds": seconds,
        "made": [],
        "batches": [],
        "on_load": staticmethod(on_load) if on_load is not None else None,
        "on_execute": staticmethod(on_execute) if on_execute is not None else None,
    }
    return type("TestBackend", (FakeBackend,), attributes)
