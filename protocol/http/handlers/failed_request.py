"""Failure log entries of HTTP inference requests that were handled by a task."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from protocol.errors import ServerError
from protocol.http.codec.infer import HEADER_LENGTH, parse_header_length
from protocol.http.exchange import HttpRequest
from protocol.log.call_origin import CallOrigin
from protocol.log.failure_log import FailedRequest
from protocol.log.tags import of_call, tags_of

# The text of a request that could not be decoded is searched for its id up to this size.
_MOST_SEARCHED = 64 * 1024


class _Body(msgspec.Struct):
    id: str = ""


_DECODER = msgspec.json.Decoder(_Body)


def describe(
    request: HttpRequest | None, parameters: Mapping[str, str], arrival_ns: int, origin: CallOrigin
) -> FailedRequest:
    """`request` is None where its body has not come whole; `parameters` are those of its path, and `arrival_ns` is in
    nanoseconds of `time.monotonic_ns`."""
    request_id = "" if request is None else own_id(request)
    seconds = (time.monotonic_ns() - arrival_ns) / 1e9
    name = parameters.get("model_name", "")
    if not name and request is not None and request.inference is not None:  # one that only the body names
        name = request.inference.model_name
    inference = None if request is None else request.inference
    tags = of_call(origin, request_id) if inference is None else tags_of(inference)
    return FailedRequest(name, parameters.get("model_version", ""), request_id, seconds, tags)


def own_id(request: HttpRequest) -> str:
    """The `id` of a request for inference; of one which could not be decoded as far as it can be read."""
    if request.inference is not None:
        return request.inference.id
    body = memoryview(request.body)
    with suppress(ServerError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = body[: parse_header_length(request.headers.get(HEADER_LENGTH), len(body))]
        if len(text) <= _MOST_SEARCHED:
            return _DECODER.decode(text).id
    return ""
