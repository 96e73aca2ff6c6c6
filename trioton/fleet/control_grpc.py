"""The control over gRPC: index, load, unload and statistics of all replicas.

    HAProxy → [control] → everywhere

What the calls ask for is put as over HTTP, which replicas are asked by. Restricted protocols are checked here, keys by
the replicas.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import trio
from google.protobuf.json_format import ParseDict
from grpclib.const import Cardinality, Handler

from protocol.access.control import AccessControl
from protocol.errors import (
    Forbidden,
    Internal,
    InvalidArgument,
    NotFound,
    ServerError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from protocol.failures import CallbackFailures
from protocol.grpc.access import guarded
from protocol.grpc.call.stream import Stream
from protocol.grpc.connection.calls import Shared
from protocol.grpc.connection.connection import Connection
from protocol.grpc.settings import ConnectionLimits
from protocol.limits.request_memory import RequestMemory
from protocol.proto import message_class
from trioton.fleet.control_http import MAX_BODY_BYTES, SHARED_MEMORY_REFUSAL
from trioton.fleet.everywhere import Everywhere, Outcome
from trioton.fleet.http_call import CallFailed, Headers
from trioton.fleet.merging import merged_index, merged_statistics
from trioton.fleet.model_records import ModelRequest

_SERVICE = "/inference.GRPCInferenceService/"
_SHARED_MEMORY = tuple(
    f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Status", "Register", "Unregister")
)
_REPOSITORY_CONTROL = ("List", "Register", "Unregister")
_KINDS: dict[int, type[ServerError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    500: Internal,
    501: Unsupported,
    503: Unavailable,
}


class ControlCalls:
    """The handlers. `own_restrictions` are the headers of restricted APIs over HTTP."""

    def __init__(self, everywhere: Everywhere, own_restrictions: Callable[[], Headers]) -> None:
        self._everywhere = everywhere
        self._own_restrictions = own_restrictions

    def handlers(self, access: AccessControl) -> dict[str, Handler]:
        """By path, behind the check of `access`."""
        calls = {
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "ModelStatistics": self._statistics,
        }
        found = {
            _SERVICE + name: Handler(call, Cardinality.UNARY_UNARY, _request_class(name), _response_class(name))
            for name, call in calls.items()
        }
        refused = Handler(_refuse_shared_memory, Cardinality.UNARY_UNARY, memoryview, bytes)
        found.update({_SERVICE + name: refused for name in _SHARED_MEMORY})
        by_http = Handler(_refuse_repositories, Cardinality.UNARY_UNARY, memoryview, bytes)
        found.update({f"/trioton.RepositoryControl/{name}": by_http for name in _REPOSITORY_CONTROL})
        return guarded(found, access)

    def _headers(self, stream: Stream) -> Headers:
        key = stream.header("authorization")
        own = [] if key is None else [(b"authorization", key.encode("latin-1"))]
        return [*own, (b"content-type", b"application/json"), *self._own_restrictions()]

    async def _index(self, stream: Stream) -> None:
        request: Any = await stream.recv_message()
        _refuse_name(request.repository_name)
        found = await self._everywhere.ask("POST", "/v2/repository/index", self._headers(stream))
        if isinstance(found, Outcome):
            raise outcome_error(found)
        await stream.send_message(
            ParseDict({"models": merged_index(found, ready=request.ready)}, _response_class("RepositoryIndex")(), True)
        )

    async def _statistics(self, stream: Stream) -> None:
        request: Any = await stream.recv_message()
        version = f"/versions/{request.version}" if request.version else ""
        target = f"/v2/models/{request.name}{version}/stats" if request.name else "/v2/models/stats"
        found = await self._everywhere.ask("GET", target, self._headers(stream))
        if isinstance(found, Outcome):
            raise outcome_error(found)
        answer = merged_statistics([*found.values()])
        await stream.send_message(ParseDict(answer, _response_class("ModelStatistics")(), True))

    async def _load(self, stream: Stream) -> None:
        if refusal := await self._everywhere.refusal(self._headers(stream)):  # before the message is waited for
            raise outcome_error(refusal)
        request: Any = await stream.recv_message()
        await self._change(stream, request, load_parameters(request.parameters), is_load=True)

    async def _unload(self, stream: Stream) -> None:
        request: Any = await stream.recv_message()
        parameters = {
            name: value.bool_param for name, value in request.parameters.items() if name == "unload_dependents"
        }
        await self._change(stream, request, parameters, is_load=False)

    async def _change(self, stream: Stream, request: Any, parameters: dict[str, Any], *, is_load: bool) -> None:
        _refuse_name(request.repository_name)
        body = msgspec.json.encode({"parameters": parameters}) if parameters else b""
        wanted = ModelRequest(request.model_name, is_load, body)
        report = await self._everywhere.change(wanted, self._headers(stream))
        if report.error:
            raise _KINDS.get(report.status, InvalidArgument)(report.error)
        name = "RepositoryModelLoad" if is_load else "RepositoryModelUnload"
        await stream.send_message(_response_class(name)())


async def serve_control_grpc(
    handlers: dict[str, Handler],
    listeners: list[trio.SocketListener],
    failures: CallbackFailures,
) -> None:
    """Until it is cancelled, with all its calls."""
    limits = ConnectionLimits(max_message_size=MAX_BODY_BYTES)
    shared = Shared(handlers, limits, memory=RequestMemory(MAX_BODY_BYTES), failures=failures)

    async def serve(stream: trio.SocketStream) -> None:
        try:
            await Connection(stream, shared).run()
        except Exception as error:
            failures.note("connection", error, "a gRPC connection of the fleet's control failed, and ends")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, serve, listeners))


def load_parameters(parameters: Any) -> dict[str, str]:
    """As the JSON of a load over HTTP has them. Raises InvalidArgument."""
    found: dict[str, str] = {}
    for name, value in parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind == "string_param":
            found[name] = value.string_param
        elif kind == "bytes_param":
            found[name] = base64.b64encode(value.bytes_param).decode()
        else:
            raise InvalidArgument(
                f"invalid value type for load parameter '{name}', expected string_param or bytes_param."
            )
    return found


def outcome_error(outcome: Outcome) -> ServerError:
    """A replica's error, as its own edge for gRPC would raise it."""
    if isinstance(outcome, CallFailed):
        return Unavailable(str(outcome))
    try:
        text = str(msgspec.json.decode(outcome.body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        text = f"status {outcome.status}"
    return _KINDS.get(outcome.status, InvalidArgument)(text)


async def _refuse_shared_memory(stream: Stream) -> None:
    raise Unsupported(SHARED_MEMORY_REFUSAL)


async def _refuse_repositories(stream: Stream) -> None:
    raise Unsupported("a fleet registers repositories over HTTP: POST /v2/repository/register")


def _refuse_name(name: str) -> None:
    if name:
        raise Unsupported("'repository_name' specification is not supported")


def _request_class(name: str) -> Any:
    return message_class(f"inference.{name}Request")


def _response_class(name: str) -> Any:
    return message_class(f"inference.{name}Response")
