"""Failure log entries of HTTP inference requests that were handled by a task."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from protocol.errors import ServerError
from protocol.failure_log import FailedRequest
from protocol.http.codec.infer import HEADER_LENGTH, parse_header_length
from protocol.http.exchange import HttpRequest

# The text of a request that could not be decoded is searched for its id up to this size.
_MOST_SEARCHED = 64 * 1024


class _Body(msgspec.Struct):
    id: str = ""


_DECODER = msgspec.json.Decoder(_Body)


def describe(request: HttpRequest | None, parameters: Mapping[str, str], arrival_ns: int) -> FailedRequest:
    """`request` is None where its body has not come whole; `parameters` are those of its path, and `arrival_ns` is in
    nanoseconds of `time.monotonic_ns`."""
    if request is None:
        request_id = ""
    elif request.inference is not None:
        request_id = request.inference.id
    else:
        request_id = _id_in(request)
    seconds = (time.monotonic_ns() - arrival_ns) / 1e9
    name = parameters.get("model_name", "")
    if not name and request is not None and request.inference is not None:  # one that only the body names
        name = request.inference.model_name
    return FailedRequest(name, parameters.get("model_version", ""), request_id, seconds)


def _id_in(request: HttpRequest) -> str:
    """That of a request which could not be decoded, as far as it can be read."""
    body = memoryview(request.body)
    with suppress(ServerError, msgspec.MsgspecError, UnicodeDecodeError):
        text = body[: parse_header_length(request.headers.get(HEADER_LENGTH), len(body))]
        if len(text) <= _MOST_SEARCHED:
            return _DECODER.decode(text).id
    return ""
