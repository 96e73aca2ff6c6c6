"""Handlers of the shared memory extensions: register, unregister and status, for system and CUDA memory.

Source: reference section "Shared memory".
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
import trio
from msgspec import UNSET, UnsetType

from protocol.errors import InvalidArgument
from protocol.http.codec.json_text import JsonReader
from protocol.http.exchange import Handler, HttpRequest
from protocol.http.reply import Reply, json_reply

Unsigned: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class SharedMemoryCalls:
    """The three calls for one kind of memory. `status` and `unregister` mean all regions where the path names none."""

    register: Handler
    unregister: Handler
    status: Handler


class SystemRegionBody(msgspec.Struct):
    key: str | UnsetType = UNSET
    offset: Unsigned = 0
    byte_size: Unsigned | UnsetType = UNSET


class RawHandle(msgspec.Struct):
    """A `cudaIpcMemHandle_t` in base64."""

    b64: str


class CudaRegionBody(msgspec.Struct):
    raw_handle: RawHandle | UnsetType = UNSET
    device_id: Unsigned | UnsetType = UNSET
    byte_size: Unsigned | UnsetType = UNSET


_SYSTEM_READER = JsonReader(SystemRegionBody)
_CUDA_READER = JsonReader(CudaRegionBody)


async def _register_system(request: HttpRequest) -> Reply:
    body = _SYSTEM_READER.read(request.body)
    if body.key is UNSET:
        raise _no_field("key")
    if body.byte_size is UNSET:
        raise _no_field("byte_size")
    request.services.shared_memory.register_system(_region(request), body.key, body.offset, body.byte_size)
    return Reply()


async def _unregister_system(request: HttpRequest) -> Reply:
    request.services.shared_memory.unregister_system(_region(request))
    return Reply()


async def _system_status(request: HttpRequest) -> Reply:
    return json_reply(request.services.shared_memory.system_status(_region(request)))


async def _register_cuda(request: HttpRequest) -> Reply:
    """In a thread: the first call loads cupy and makes a context on the device."""
    body = _CUDA_READER.read(request.body)
    if body.raw_handle is UNSET:
        raise _no_field("raw_handle")
    if body.device_id is UNSET:
        raise _no_member("device_id")
    if body.byte_size is UNSET:
        raise _no_member("byte_size")
    await trio.to_thread.run_sync(
        request.services.shared_memory.register_cuda,
        _region(request),
        _decoded_handle(body.raw_handle.b64),
        body.device_id,
        body.byte_size,
    )
    return Reply()


async def _unregister_cuda(request: HttpRequest) -> Reply:
    request.services.shared_memory.unregister_cuda(_region(request))
    return Reply()


async def _cuda_status(request: HttpRequest) -> Reply:
    return json_reply(request.services.shared_memory.cuda_status(_region(request)))


SYSTEM = SharedMemoryCalls(_register_system, _unregister_system, _system_status)
CUDA = SharedMemoryCalls(_register_cuda, _unregister_cuda, _cuda_status)


def _region(request: HttpRequest) -> str:
    """Empty for all regions."""
    return request.path_parameters.get("region_name", "")


def _no_field(field: str) -> InvalidArgument:
    return InvalidArgument(f"Shared memory register request has no '{field}' field")


def _no_member(field: str) -> InvalidArgument:
    return InvalidArgument(f"attempt to access non-existing object member '{field}'")


def _decoded_handle(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t") from None
