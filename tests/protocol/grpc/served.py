"""A server on a real socket, and real clients of it in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc  # type: ignore[import-untyped]  # ships no types
import numpy as np
import trio
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from protocol.grpc.server import GrpcSettings, serve_grpc
from protocol.services import EdgeServices
from tests.protocol.grpc.drivers import driver
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.fakes import FakeCore

SMALL = np.arange(16, dtype=np.float32).reshape(1, 16)
LOCAL = GrpcSettings(host="127.0.0.1", port=0)


@dataclass
class Served:
    address: str
    core: FakeCore
    services: EdgeServices
    stop: trio.Event
    has_ended: trio.Event

    @property
    def counts(self) -> dict[str, int]:
        """How often each limit has refused something."""
        return {limit: count for (protocol, limit), count in self.services.limits.counts().items()}

    async def run(self, use: Callable[[triton.InferenceServerClient], Any], **options: Any) -> Any:
        """Use NVIDIA's client in a thread of its own."""

        def with_client() -> Any:
            with triton.InferenceServerClient(self.address, **options) as client:
                return use(client)

        return await trio.to_thread.run_sync(with_client)

    async def run_stub(self, use: Callable[[Any], Any], *more: tuple[str, Any]) -> Any:
        """Use gRPC's own stub in a thread of its own, with more options of its channel."""

        def with_stub() -> Any:
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), *more]
            with grpc.insecure_channel(self.address, options=options) as channel:
                return use(service_pb2_grpc.GRPCInferenceServiceStub(channel))

        return await trio.to_thread.run_sync(with_stub)


@asynccontextmanager
async def serving(settings: GrpcSettings = LOCAL, *, seconds: float = 60, **parts: Any) -> AsyncIterator[Served]:
    """A server with services as `edge_services` makes them of `parts`, for so many seconds at most."""
    settings = replace(settings, has_fast_path=driver.has_fast_path)
    stop, has_ended = trio.Event(), trio.Event()
    core = FakeCore()
    services = edge_services(core, **parts)

    async def serve(task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        await serve_grpc(services, settings, stop, task_status=task_status)
        has_ended.set()

    with trio.fail_after(seconds):
        async with trio.open_nursery() as nursery:
            core.tasks = nursery
            host, port = await nursery.start(serve)
            yield Served(f"{host}:{port}", core, services, stop, has_ended)
            stop.set()


def tensor(array: Any, datatype: str = "FP32") -> triton.InferInput:
    found = triton.InferInput("x", array.shape, datatype)
    found.set_data_from_numpy(array)
    return found


def wire_request(model: str = "echo", request_id: str = "7", values: NDArray[np.float32] = SMALL) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[values.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=values.shape)
    return request


class Answers:
    """The callback of NVIDIA's streaming client: collects answers until as many came as are waited for."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.errors: list[InferenceServerException] = []
        self._changed = threading.Condition()

    def __call__(self, result: Any, error: InferenceServerException | None) -> None:
        with self._changed:
            if error is None:
                self.results.append(result)
            else:
                self.errors.append(error)
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.results) + len(self.errors) >= count, timeout=30)
