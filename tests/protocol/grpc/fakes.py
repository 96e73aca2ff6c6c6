"""A small core for the gRPC edge's tests: its models echo, wait, or fail as their names say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from protocol.core import (
    InferBatchStatistics,
    InferResponseStatistics,
    InferStatistics,
    LoadParameters,
    MemoryUsage,
    ModelIndex,
    ModelMetadata,
    ModelRepository,
    ModelStatistics,
    QueueRoom,
    ReplyChannel,
    ServerMetadata,
    StatisticDuration,
    Submitted,
    TensorMetadata,
)
from protocol.datatypes import DataType
from protocol.errors import Decoupled, InvalidArgument, NotFound, ServerError, Unavailable
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse, Tensor
from protocol.text.model import TextModel
from tests.protocol.submitted import FakeSubmitted

CONFIG: dict[str, Any] = {
    "name": "echo",
    "backend": "python",
    "max_batch_size": 8,
    "version_policy": {"latest": {"num_versions": 1}},
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
    "instance_group": [{"name": "echo_0", "kind": "KIND_CPU", "count": 2}],
    "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": 100},
    "parameters": {"key": {"string_value": "value"}},
}


@dataclass(slots=True, eq=False)
class FakeCore:
    """Replies `infer` by the model's name.

    `echo` gives its inputs back, `wait` does so once `gate` is set, `forever` never answers, `unavailable` and
    `unknown` and `defect` fail. With the parameter `size` the output is so many bytes. `requests` are those that came,
    `cancelled` the names of those that were given up.

    `many` is decoupled, `many_wait` and `many_forever` too: they echo as often as the parameter `responses` says, wait
    as their names say after the first, then fail if there is a parameter `failure`, else end as the parameter `end`
    says: "final" with the last response, "flag" with a flag alone.
    """

    is_up: bool = True
    is_complete: bool = True
    gate: trio.Event = field(default_factory=trio.Event)
    came: trio.Event = field(default_factory=trio.Event)
    requests: list[InferenceRequest] = field(default_factory=list)
    registered: list[ModelRepository] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    cancellation: trio.Event = field(default_factory=trio.Event)
    loaded: list[tuple[str, LoadParameters]] = field(default_factory=list)
    unloaded: list[tuple[str, bool]] = field(default_factory=list)
    stopped: list[tuple[str, str, int]] = field(default_factory=list)
    in_flight: int = 0
    responded: int = 0
    _arrivals: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    most_in_flight: int = 0
    tasks: trio.Nursery | None = None
    submitted: list[FakeSubmitted] = field(default_factory=list)

    def is_live(self) -> bool:
        return True

    def is_ready(self) -> bool:
        if not self.is_up:
            raise Unavailable("Server exiting")
        return self.is_complete

    def is_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        if name != "echo":
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return version in (LATEST_VERSION, 1)

    async def check_ready(self) -> bool:
        return self.is_ready()

    async def check_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        self.is_ready()
        if name == "unavailable":
            raise Unavailable("Request for unknown model: 'unavailable' has no available versions")
        return self.is_model_ready(name, version)

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata("trioton", "0.1.0", ("classification", "model_repository"))

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        self.is_model_ready(name, version)
        tensor = TensorMetadata("x", "FP32", (-1, -1))
        return ModelMetadata(name, ("1", "2"), "python", (tensor,), (tensor,))

    def model_config(self, name: str, version: int = LATEST_VERSION) -> dict[str, Any]:
        self.is_model_ready(name, version)
        return CONFIG

    def each_statistics(self, name: str = "", version: int = LATEST_VERSION) -> Iterator[ModelStatistics]:
        if name not in ("", "echo"):
            raise InvalidArgument(f"requested model '{name}' is not available")
        duration = StatisticDuration(3, 4_000_000_000)
        yield ModelStatistics(
            "echo",
            "1",
            last_inference=1_700_000_000_000,
            inference_count=3,
            execution_count=2,
            inference_stats=InferStatistics(success=duration, queue=duration),
            response_stats={"1": InferResponseStatistics(empty_response=duration, cancel=StatisticDuration(1, 2))},
            batch_stats=(InferBatchStatistics(2, duration, duration, duration),),
            memory_usage=(MemoryUsage("GPU", 1, 2**33),),
        )

    async def repository_index(self, *, ready: bool = False) -> Sequence[ModelIndex]:
        entries = [ModelIndex("echo", "1", "READY"), ModelIndex("broken", "1", "UNAVAILABLE", "Internal: no file")]
        return entries[:1] if ready else [*entries, ModelIndex("never loaded")]

    async def load_model(self, name: str, parameters: LoadParameters = LoadParameters()) -> None:  # noqa: B008
        self.loaded.append((name, parameters))

    async def unload_model(self, name: str, *, unload_dependents: bool = False) -> None:
        self.unloaded.append((name, unload_dependents))

    def repositories(self) -> Sequence[ModelRepository]:
        return [ModelRepository("/models"), *self.registered]

    async def register_repository(self, repository: ModelRepository) -> None:
        if not repository.path:
            raise InvalidArgument("failed to register '', repository not found")
        self.registered.append(repository)

    async def unregister_repository(self, path: str) -> None:
        self.registered = [each for each in self.registered if each.path != path]

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> Submitted:
        """Answered by a task of the nursery `tasks`."""
        submitted = FakeSubmitted(request)
        self.submitted.append(submitted)
        try:
            if self.is_decoupled(request.model_name, request.model_version):
                raise Decoupled("many answers")
        except ServerError as error:
            reply_to.send_nowait(error)
            return submitted
        self._note(request)
        assert self.tasks is not None
        self.tasks.start_soon(submitted.run, partial(self.answer, request), reply_to)
        return submitted

    def flush(self) -> None:
        pass

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        submitted = FakeSubmitted(request)
        self.submitted.append(submitted)
        return await submitted.wait(partial(self._answer_one, request))

    async def _answer_one(self, request: InferenceRequest) -> InferenceResponse:
        if self.is_decoupled(request.model_name, request.model_version):
            raise Decoupled("many answers")
        self._note(request)
        return await self.answer(request)

    def _note(self, request: InferenceRequest) -> None:
        self.requests.append(request)
        self.came.set()

    async def answer(self, request: InferenceRequest) -> InferenceResponse:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self._arrivals.unpark_all()
        try:
            await self._behave(request)
        except trio.Cancelled:
            self.cancelled.append(request.id)
            self.cancellation.set()
            raise
        finally:
            self.in_flight -= 1
        outputs = request.inputs
        if isinstance(size := request.parameters.get("size"), int):
            outputs = [Tensor("x", DataType.UINT8, (size,), bytes(size))]
        return InferenceResponse(request.model_name, 1, outputs, request.id, {"steps": 1})

    async def infer_stream(
        self, request: InferenceRequest, respond: Callable[[InferenceResponse], Awaitable[None]]
    ) -> bool:
        self.requests.append(request)
        self.came.set()
        count = int(request.parameters.get("responses", 1))
        has_final = request.parameters.get("end", "final") == "final" and "failure" not in request.parameters
        try:
            for number in range(count):
                is_final = has_final and number == count - 1
                outputs = {"number": number}
                await respond(InferenceResponse("many", 1, request.inputs, request.id, {**outputs}, is_final))
                self.responded += 1
                if number == 0 and request.model_name == "many_wait":
                    await self.gate.wait()
                if number == 0 and request.model_name == "many_forever":
                    await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled.append(request.id)
            self.cancellation.set()
            raise
        if "failure" in request.parameters:
            raise InvalidArgument(str(request.parameters["failure"]))
        return has_final and count > 0

    async def text_model(self, name: str, version: int = LATEST_VERSION) -> TextModel:
        raise NotImplementedError  # of the HTTP edge alone

    async def load_adapter(self, name: str, adapter: str, path: str, *, replace: bool = False) -> None:
        raise NotImplementedError

    async def unload_adapter(self, name: str, adapter: str) -> None:
        raise NotImplementedError

    def sleeping(self) -> Mapping[str, bool]:
        raise NotImplementedError

    async def sleep(self, name: str, level: int = 1) -> None:
        raise NotImplementedError

    async def wake(self, name: str) -> None:
        raise NotImplementedError

    async def reset_prefix_cache(self, name: str) -> None:
        raise NotImplementedError

    def queue_room(self, name: str, version: int = LATEST_VERSION) -> QueueRoom | None:
        return None

    async def text_models(self) -> Sequence[TextModel]:
        return ()

    def takes_device_tensors(self, name: str, version: int = LATEST_VERSION) -> bool:
        return False

    def takes_shared_tensors(self, name: str, version: int = LATEST_VERSION) -> bool:
        return False

    def is_batching(self, name: str, version: int = LATEST_VERSION) -> bool:
        return bool(self.model_config(name, version)["max_batch_size"])

    def cancel(self, name: str, request_id: str, version: int = LATEST_VERSION) -> int:
        self.is_model_ready(name, version)
        self.stopped.append((name, request_id, version))
        return 2

    def is_decoupled(self, name: str, version: int = LATEST_VERSION) -> bool:
        if name == "unknown":
            raise NotFound("Request for unknown model: 'unknown' is not found")
        return name.startswith("many")

    def labels(self, name: str, version: int, output: str) -> Sequence[str]:
        return ("cat", "dog") if (name, output) == ("echo", "x") else ()

    async def wait_for_in_flight(self, count: int) -> None:
        while self.in_flight < count:
            await self._arrivals.park()

    async def _behave(self, request: InferenceRequest) -> None:
        match request.model_name:
            case "wait":
                await self.gate.wait()
            case "forever":
                await trio.sleep_forever()
            case "unavailable":
                raise Unavailable("model 'unavailable' is restarting")
            case "unknown":
                raise NotFound("Request for unknown model: 'unknown' is not found")
            case "defect":
                raise RuntimeError("a defect of the test")
            case _:
                await trio.lowlevel.checkpoint()
