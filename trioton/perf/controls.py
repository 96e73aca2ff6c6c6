"""Controls: what a target is asked beside its load, over HTTP, over gRPC, and in this process.

Each question has a connection of its own, so that it waits for no request of the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import trio
from google.protobuf import json_format

from protocol.core import ModelMetadata, ModelStatistics
from protocol.errors import InvalidArgument, ServerError
from protocol.messages import LATEST_VERSION, Buffer
from protocol.proto import message_class
from repository.json_form import to_json_form
from repository.protobuf_form import config_from_message
from trioton.in_process import Models
from trioton.perf.caller import ModelDescription, TargetError
from trioton.perf.target import Target, Wire
from trioton.perf.wires.grpc_requests import call_headers
from trioton.perf.wires.h2 import H2Client, H2Error, prefixed
from trioton.perf.wires.http_requests import request
from trioton.perf.wires.response_reader import ResponseError, ResponseReader
from trioton.perf.wires.sockets import Peer, client_tls, open_stream

T = TypeVar("T")
_ANSWER_SECONDS = 20.0
_CHUNK = 65536
_METRICS_PORT = 8002
NO_METRICS = "none"


class HttpControl:
    """Implements `Control` over HTTP."""

    def __init__(self, target: Target, peer: Peer) -> None:
        self._target, self._peer = target, peer

    async def describe(self) -> ModelDescription:
        """Of a model behind OpenAI's routes as far as the server has the inference protocol."""
        target = self._target
        path = _model_path(target.model, target.version)
        try:
            metadata = _read(await self._get(path), ModelMetadata)
            config = _read(await self._get(f"{path}/config"), dict[str, Any])
        except TargetError:
            if target.wire is not Wire.OPENAI:
                raise
            await self._get("/v1/models")  # whether there is a server at all
            return ModelDescription(target.model, target.version)
        return ModelDescription(target.model, target.version, metadata.inputs, metadata.outputs, config)

    async def statistics(self, model: str = "") -> Sequence[ModelStatistics]:
        version = "" if model else self._target.version
        answer = await self._get(f"{_model_path(model or self._target.model, version)}/stats")
        return _read(answer, _Statistics).model_stats

    async def metrics(self) -> str:
        return await _metrics(self._target, self._peer)

    async def register_system_memory(self, name: str, key: str, byte_size: int) -> None:
        body = msgspec.json.encode({"key": key, "offset": 0, "byte_size": byte_size})
        await self._ask("POST", f"/v2/systemsharedmemory/region/{quote(name, safe='')}/register", body)

    async def unregister_system_memory(self, name: str) -> None:
        await self._ask("POST", f"/v2/systemsharedmemory/region/{quote(name, safe='')}/unregister", b"")

    async def _get(self, path: str) -> bytes:
        return await self._ask("GET", path, b"")

    async def _ask(self, method: str, path: str, body: bytes) -> bytes:
        return await _http(self._peer, method, path, self._target.headers, body)


class GrpcControl:
    """Implements `Control` over gRPC."""

    def __init__(self, target: Target, peer: Peer) -> None:
        self._target, self._peer = target, peer

    async def describe(self) -> ModelDescription:
        names = {"name": self._target.model, "version": self._target.version}
        metadata = await self._ask("ModelMetadata", "ModelMetadata", names)
        answer = await self._ask("ModelConfig", "ModelConfig", names)
        try:
            config = to_json_form(config_from_message(answer.config))
            found = _converted(metadata, ModelMetadata)
        except (InvalidArgument, msgspec.ValidationError) as error:
            raise TargetError(f"the server describes model '{self._target.model}' oddly: {error}") from None
        return ModelDescription(self._target.model, self._target.version, found.inputs, found.outputs, config)

    async def statistics(self, model: str = "") -> Sequence[ModelStatistics]:
        version = "" if model else self._target.version
        names = {"name": model or self._target.model, "version": version}
        return _converted(await self._ask("ModelStatistics", "ModelStatistics", names), _Statistics).model_stats

    async def metrics(self) -> str:
        return await _metrics(self._target, self._peer)

    async def register_system_memory(self, name: str, key: str, byte_size: int) -> None:
        values = {"name": name, "key": key, "byte_size": byte_size}
        await self._ask("SystemSharedMemoryRegister", "SystemSharedMemoryRegister", values)

    async def unregister_system_memory(self, name: str) -> None:
        await self._ask("SystemSharedMemoryUnregister", "SystemSharedMemoryUnregister", {"name": name})

    async def _ask(self, method: str, kind: str, values: dict[str, Any]) -> Any:
        message = message_class(f"inference.{kind}Request")(**values).SerializeToString()
        headers = call_headers(method, self._peer.authority, self._target)
        return message_class(f"inference.{kind}Response").FromString(await _grpc(self._peer, headers, message))


class InProcessControl:
    """Implements `Control` by the models of this process."""

    def __init__(self, target: Target, models: Models) -> None:
        self._target, self._models = target, models

    async def describe(self) -> ModelDescription:
        target = self._target
        version = int(target.version) if target.version else LATEST_VERSION
        try:
            metadata = self._models.model_metadata(target.model, version)
            config = self._models.model_config(target.model, version)
        except ServerError as error:
            raise TargetError(str(error)) from None
        return ModelDescription(target.model, target.version, metadata.inputs, metadata.outputs, config)

    async def statistics(self, model: str = "") -> Sequence[ModelStatistics]:
        version = int(self._target.version) if self._target.version and not model else LATEST_VERSION
        try:
            return self._models.model_statistics(model or self._target.model, version)
        except ServerError as error:
            raise TargetError(str(error)) from None

    async def metrics(self) -> str:
        return ""

    async def register_system_memory(self, name: str, key: str, byte_size: int) -> None:
        raise TargetError("in process there is no shared memory with a server")

    async def unregister_system_memory(self, name: str) -> None:
        pass


def peer_of(target: Target) -> Peer:
    """Raises TargetError: the address is no host and port."""
    host, colon, port = target.address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise TargetError(f"expected <host>:<port> as the address of the server, got '{target.address}'")
    if not target.tls:
        return Peer(host, int(port))
    protocol = "h2" if target.wire in (Wire.GRPC, Wire.STREAM) else "http/1.1"
    try:
        return Peer(host, int(port), client_tls(protocol, target.ca_file))
    except OSError as error:
        raise TargetError(f"the roots in '{target.ca_file}' cannot be used: {error}") from None


class _Statistics(msgspec.Struct):
    model_stats: list[ModelStatistics]


def _model_path(model: str, version: str) -> str:
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _read(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind, strict=False)
    except msgspec.MsgspecError as error:
        raise TargetError(f"the server's answer is not what was asked for: {error}") from None


def _converted(message: Any, kind: type[T]) -> T:
    fields = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return msgspec.convert(fields, kind, strict=False, str_keys=True)


async def _metrics(target: Target, peer: Peer) -> str:
    if target.metrics_url == NO_METRICS:
        return ""
    if target.metrics_url:
        parts = urlsplit(target.metrics_url)
        tls = client_tls("http/1.1", target.ca_file) if parts.scheme == "https" else None
        places = [(Peer(parts.hostname or peer.host, parts.port or _METRICS_PORT, tls), parts.path or "/metrics")]
    else:
        own = [] if target.wire in (Wire.GRPC, Wire.STREAM) else [(peer, "/metrics")]
        places = [*own, (Peer(peer.host, _METRICS_PORT), "/metrics")]
    for place, path in places:
        try:
            return (await _http(place, "GET", path, (), b"")).decode(errors="replace")
        except TargetError:
            if target.metrics_url:
                raise
    return ""


async def _http(peer: Peer, method: str, path: str, headers: tuple[tuple[str, str], ...], body: bytes) -> bytes:
    data = request(path, peer.authority, headers, body, "application/json")
    if method != "POST":
        data = method.encode() + data[len("POST") :]
    reader = ResponseReader()
    reader.begin(keeps_body=True)
    try:
        with trio.fail_after(_ANSWER_SECONDS):
            async with await open_stream(peer) as stream:
                await stream.send_all(data)
                while not reader.feed(bytes(part := await stream.receive_some(_CHUNK))):
                    if not part and not reader.feed_end():
                        raise TargetError(f"{peer.authority} has closed the connection")
                    if not part:
                        break
    except trio.TooSlowError:
        raise TargetError(f"{peer.authority} has not answered within {_ANSWER_SECONDS:g} s") from None
    except (OSError, trio.BrokenResourceError) as error:
        raise TargetError(f"{peer.authority} cannot be reached: {_text(error)}") from None
    except ResponseError as error:
        raise TargetError(f"{peer.authority} does not speak HTTP/1: {error}") from None
    if reader.status != 200:
        text = reader.body.decode(errors="replace")
        raise TargetError(f"{peer.authority} answers {method} {path} with {reader.status}: {text[:300]}")
    return reader.body


class _Answer:
    """Implements `h2.Handler` for one call."""

    def __init__(self) -> None:
        self.data: bytes = b""
        self.error: str | None = None

    def message(self, stream_id: int, data: Buffer) -> None:
        self.data = bytes(data)

    def end(self, stream_id: int, error: str) -> None:
        self.error = error


async def _grpc(peer: Peer, headers: list[tuple[str, str]], message: bytes) -> bytes:
    answer = _Answer()
    h2 = H2Client(headers, answer)
    h2.start()
    h2.open(prefixed(message))
    try:
        with trio.fail_after(_ANSWER_SECONDS):
            async with await open_stream(peer) as stream:
                while answer.error is None:
                    if output := h2.take_output():
                        await stream.send_all(b"".join(output))
                    part = await stream.receive_some(_CHUNK)
                    if not part:
                        raise TargetError(f"{peer.authority} has closed the connection")
                    h2.receive(bytes(part))
    except trio.TooSlowError:
        raise TargetError(f"{peer.authority} has not answered within {_ANSWER_SECONDS:g} s") from None
    except (OSError, trio.BrokenResourceError) as error:
        raise TargetError(f"{peer.authority} cannot be reached: {_text(error)}") from None
    except H2Error as error:
        raise TargetError(f"{peer.authority} does not speak gRPC: {error}") from None
    if answer.error:
        raise TargetError(answer.error)
    return answer.data


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error.__cause__ or error)


async def http_get(peer: Peer, path: str) -> bytes:
    """The body of a good answer. Raises TargetError."""
    return await _http(peer, "GET", path, (), b"")
