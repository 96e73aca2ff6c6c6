"""A small core behind the HTTP edge: models that echo, wait or fail, and a record of what was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from protocol.core import (
    LoadParameters,
    ModelIndex,
    ModelMetadata,
    ModelRepository,
    ModelStatistics,
    QueueRoom,
    ReplyChannel,
    Respond,
    ServerMetadata,
    Submitted,
    TensorMetadata,
)
from protocol.errors import Decoupled, NotFound, ServerError, Unavailable, Unsupported
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse, Tensor
from protocol.text.model import TextModel
from tests.protocol.submitted import FakeSubmitted

DEFAULT_PARAMETERS = LoadParameters()


@dataclass
class FakeCore:
    """Implements `protocol.core.InferenceCore`. The model `echo` answers each input as an output of the same name
    with `OUT_` before it, `wait` never answers, `gate` answers when `gate` is set, `broken` raises `failure`, `many` is
    decoupled and gives as many such answers as `answers` says, then raises `failure` if `fails_late`."""

    live: bool = True
    ready: bool = True
    exiting: bool = False
    failure: Exception = field(default_factory=lambda: ServerError("failed"))
    respond: Callable[[InferenceRequest], InferenceResponse] | None = None
    inputs: tuple[TensorMetadata, ...] = (TensorMetadata("IN", "FP32", (-1, 4)),)
    max_batch_size: int = 8
    class_labels: Sequence[str] = ()
    answers: int = 3
    fails_late: bool = False
    gate: trio.Event = field(default_factory=trio.Event)
    started: trio.Event = field(default_factory=trio.Event)
    cancelled: trio.Event = field(default_factory=trio.Event)
    requests: list[InferenceRequest] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    sent: int = 0
    tasks: trio.Nursery | None = None
    texts: Sequence[TextModel] = ()
    asleep: dict[str, bool] = field(default_factory=dict)
    submitted: list[FakeSubmitted] = field(default_factory=list)
    counted: dict[str, Any] = field(default_factory=lambda: {"inference_count": 3})  # members of ModelStatistics

    def is_live(self) -> bool:
        if self.exiting:
            raise Unavailable("Server exiting")
        return self.live

    def is_ready(self) -> bool:
        if self.exiting:
            raise Unavailable("Server exiting")
        return self.ready

    def is_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        self._check(name, version)
        return name != "wait"

    async def check_ready(self) -> bool:
        return self.is_ready()

    async def check_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        return self.is_model_ready(name, version)

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata("trioton", "0.1", ("binary_tensor_data", "statistics"))

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        self._check(name, version)
        outputs = tuple(TensorMetadata(f"OUT_{t.name}", t.datatype, t.shape) for t in self.inputs)
        return ModelMetadata(name, ("1", "2"), "python", self.inputs, outputs)

    def model_config(self, name: str, version: int = LATEST_VERSION) -> dict[str, Any]:
        self._check(name, version)
        return {"name": name, "max_batch_size": self.max_batch_size, "backend": "python"}

    def each_statistics(self, name: str = "", version: int = LATEST_VERSION) -> Iterator[ModelStatistics]:
        if name:
            self._check(name, version)
        yield ModelStatistics(name or "echo", "1", **self.counted)

    async def repository_index(self, *, ready: bool = False) -> Sequence[ModelIndex]:
        self.calls.append(("index", ready))
        entries = [ModelIndex("echo", "1", "READY"), ModelIndex("bad", "1", "UNAVAILABLE", "unloaded")]
        return [entry for entry in entries if not ready or entry.state == "READY"] + [ModelIndex("never")] * (not ready)

    async def load_model(self, name: str, parameters: LoadParameters = DEFAULT_PARAMETERS) -> None:
        self.calls.append(("load", name, parameters))

    async def unload_model(self, name: str, *, unload_dependents: bool = False) -> None:
        self.calls.append(("unload", name, unload_dependents))

    async def load_adapter(self, name: str, adapter: str, path: str, *, replace: bool = False) -> None:
        self.calls.append(("load adapter", name, adapter, path, replace))

    async def unload_adapter(self, name: str, adapter: str) -> None:
        self.calls.append(("unload adapter", name, adapter))

    def sleeping(self) -> Mapping[str, bool]:
        return self.asleep

    async def sleep(self, name: str, level: int = 1) -> None:
        self.calls.append(("sleep", name, level))

    async def wake(self, name: str) -> None:
        self.calls.append(("wake", name))

    async def reset_prefix_cache(self, name: str) -> None:
        self.calls.append(("reset prefix cache", name))

    def repositories(self) -> Sequence[ModelRepository]:
        return [ModelRepository("/models"), ModelRepository("/more", {"a": "b"})]

    async def register_repository(self, repository: ModelRepository) -> None:
        self.calls.append(("register", repository))

    async def unregister_repository(self, path: str) -> None:
        self.calls.append(("unregister", path))

    def is_decoupled(self, name: str, version: int = LATEST_VERSION) -> bool:
        self._check(name, version)
        return name == "many"

    def labels(self, name: str, version: int, output: str) -> Sequence[str]:
        self._check(name, version)
        return self.class_labels

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        response = await self._answer(request)
        for index in range(self.answers if request.model_name == "many" else 1):
            response.parameters = {**response.parameters, "index": index} if request.model_name == "many" else {}
            await respond(response)
            self.sent += 1
        if self.fails_late:
            raise self.failure
        return True

    async def text_model(self, name: str, version: int = LATEST_VERSION) -> TextModel:
        for text in self.texts:
            if text.name == name:
                return text
        self._check(name, version)
        raise Unsupported(f"model '{name}' has no text")

    def queue_room(self, name: str, version: int = LATEST_VERSION) -> QueueRoom | None:
        return None

    async def text_models(self) -> Sequence[TextModel]:
        return self.texts

    def takes_device_tensors(self, name: str, version: int = LATEST_VERSION) -> bool:
        return False

    def takes_shared_tensors(self, name: str, version: int = LATEST_VERSION) -> bool:
        return False

    def is_batching(self, name: str, version: int = LATEST_VERSION) -> bool:
        self._check(name, version)
        return self.max_batch_size > 0

    def cancel(self, name: str, request_id: str, version: int = LATEST_VERSION) -> int:
        self._check(name, version)
        self.calls.append(("cancel", name, request_id, version))
        return 2

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> Submitted:
        """Answered by a task of the nursery `tasks`, but for what is refused."""
        submitted = FakeSubmitted(request)
        self.submitted.append(submitted)
        try:
            if self.is_decoupled(request.model_name, request.model_version):
                raise Decoupled("many answers")
        except ServerError as error:
            reply_to.send_nowait(error)
        else:
            assert self.tasks is not None
            self.tasks.start_soon(submitted.run, partial(self._answer, request), reply_to)
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
        return await self._answer(request)

    async def _answer(self, request: InferenceRequest) -> InferenceResponse:
        self._check(request.model_name, request.model_version)
        self.requests.append(request)
        self.started.set()
        try:
            match request.model_name:
                case "wait":
                    await trio.sleep_forever()
                case "gate":
                    await self.gate.wait()
                case "broken":
                    raise self.failure
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return self.respond(request) if self.respond else echo(request)

    def _check(self, name: str, version: int) -> None:
        if name not in ("echo", "wait", "gate", "broken", "many", "stats", "with space", "größe"):
            if self.exiting:
                raise Unavailable("Server exiting")
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if version not in (LATEST_VERSION, 1):
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")


def echo(request: InferenceRequest) -> InferenceResponse:
    outputs = [Tensor(f"OUT_{t.name}", t.datatype, t.shape, t.data) for t in request.inputs]
    if request.requested_outputs:
        outputs = [output for output in outputs if output.name in request.requested_outputs]
    return InferenceResponse(request.model_name, 1, outputs, request.id)
