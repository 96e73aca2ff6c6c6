"""Access control of gRPC calls: the category of each method, and the check before its handler runs.

Source: Triton, "Limit Endpoint Access"; what Triton does not have falls in with its like.
"""

from __future__ import annotations

from collections.abc import Awaitable

import trio
from grpclib.const import Handler

from protocol.access.categories import Category
from protocol.access.control import NO_KEYS, AccessControl
from protocol.errors import ServerError
from protocol.grpc.call.stream import Stream

_CALLS = {
    Category.HEALTH: (
        "inference.GRPCInferenceService/ServerLive",
        "inference.GRPCInferenceService/ServerReady",
        "inference.GRPCInferenceService/ModelReady",
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
    ),
    Category.METADATA: (
        "inference.GRPCInferenceService/ServerMetadata",
        "inference.GRPCInferenceService/ModelMetadata",
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ),
    Category.INFERENCE: (
        "inference.GRPCInferenceService/ModelInfer",
        "inference.GRPCInferenceService/ModelStreamInfer",
        "trioton.RequestControl/Cancel",
        "trioton.Jobs/Create",
        "trioton.Jobs/Results",
        "google.longrunning.Operations/GetOperation",
        "google.longrunning.Operations/ListOperations",
        "google.longrunning.Operations/WaitOperation",
        "google.longrunning.Operations/CancelOperation",
        "google.longrunning.Operations/DeleteOperation",
    ),
    Category.SHARED_MEMORY: (
        "inference.GRPCInferenceService/SystemSharedMemoryStatus",
        "inference.GRPCInferenceService/SystemSharedMemoryRegister",
        "inference.GRPCInferenceService/SystemSharedMemoryUnregister",
        "inference.GRPCInferenceService/CudaSharedMemoryStatus",
        "inference.GRPCInferenceService/CudaSharedMemoryRegister",
        "inference.GRPCInferenceService/CudaSharedMemoryUnregister",
    ),
    Category.MODEL_CONFIG: ("inference.GRPCInferenceService/ModelConfig",),
    Category.MODEL_REPOSITORY: (
        "inference.GRPCInferenceService/RepositoryIndex",
        "inference.GRPCInferenceService/RepositoryModelLoad",
        "inference.GRPCInferenceService/RepositoryModelUnload",
        "trioton.RepositoryControl/List",
        "trioton.RepositoryControl/Register",
        "trioton.RepositoryControl/Unregister",
    ),
    Category.STATISTICS: ("inference.GRPCInferenceService/ModelStatistics",),
    Category.TRACE: ("inference.GRPCInferenceService/TraceSetting",),
    Category.LOGGING: ("inference.GRPCInferenceService/LogSettings",),
}

# By path, as in HTTP/2's `:path`.
CATEGORIES = {f"/{call}": category for category, calls in _CALLS.items() for call in calls}

# What load balancers and monitoring ask all the time has no lines in the access log.
UNLOGGED = frozenset(path for path, category in CATEGORIES.items() if category is Category.HEALTH)


def guarded(handlers: dict[str, Handler], access: AccessControl) -> dict[str, Handler]:
    """The handlers, each behind the check of its category; the same ones where every call may be made.

    Raises:
        KeyError: a call has no category.
    """
    if access.is_open:
        return handlers
    return {path: _guarded(handler, CATEGORIES[path], access) for path, handler in handlers.items()}


def _guarded(handler: Handler, category: Category, access: AccessControl) -> Handler:
    async def check_and_handle(stream: Stream) -> None:
        stream.account = access.check(category, stream.header)
        await handler.func(stream)

    async def check_and_handle_stream(stream: Stream) -> None:
        stream.account = access.check(category, stream.header)
        await _while_allowed(handler, stream, access.until_refused(category, stream.header))

    is_long = handler.cardinality.server_streaming and access.keys is not NO_KEYS
    return handler._replace(func=check_and_handle_stream if is_long else check_and_handle)


async def _while_allowed(handler: Handler, stream: Stream, until_refused: Awaitable[ServerError]) -> None:
    """Handle a call that may last for days. It ends when its key is revoked; what it has in flight is cancelled."""
    end: Exception | None = None

    async def watch() -> None:
        nonlocal end
        end = await until_refused
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            await handler.func(stream)
        except Exception as error:  # raised below, as it is and not in a group
            end = error
        nursery.cancel_scope.cancel()
    if end is not None:
        raise end
