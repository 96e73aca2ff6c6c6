"""gRPC headers and trailers over HTTP/2: content type, timeout, status. No I/O.

Source: "gRPC over HTTP2", sections Requests and Responses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from grpclib.const import Status
from grpclib.metadata import decode_timeout

from protocol.errors import InvalidArgument, QuotaExceeded, ServerError
from protocol.grpc.call.compression import ACCEPTED_ENCODINGS
from protocol.grpc.status import encode_status_message, status_of
from protocol.log.tags import Tags

Header = tuple[bytes, bytes]

RESPONSE_HEADERS: tuple[Header, ...] = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", ",".join(ACCEPTED_ENCODINGS).encode()),
)

_CONTENT_TYPES = frozenset((b"application/grpc", b"application/grpc+proto"))


def header_size(headers: Sequence[Header]) -> int:
    """What headers count for: their bytes, and 32 for each (RFC 9113, section 6.5.2)."""
    return sum([len(name) + len(value) for name, value in headers]) + 32 * len(headers)


def refusal(fields: Mapping[bytes, bytes]) -> list[Header] | None:
    """The HTTP response to a request that is no gRPC call with protobuf; None where it is one."""
    method = fields.get(b":method", b"")
    content_type = fields.get(b"content-type", b"")
    if method != b"POST":
        http_status = b"405"
    elif content_type.partition(b";")[0].strip() not in _CONTENT_TYPES:
        http_status = b"415"
    else:
        return None
    message = f"expected POST with content-type application/grpc, got {_shown(method)} with '{_shown(content_type)}'"
    return [(b":status", http_status), *trailers(Status.INVALID_ARGUMENT, message)]


def decode_timeout_seconds(value: bytes) -> float:
    """The seconds in a `grpc-timeout` header.

    Raises:
        InvalidArgument: the header is not at most 8 digits and a unit.
    """
    try:
        if len(value) > 9:
            raise ValueError
        return decode_timeout(value.decode("ascii"))
    except ValueError:
        raise InvalidArgument(
            f"grpc-timeout must be at most 8 digits and one of H, M, S, m, u, n, got '{_shown(value)}'"
        ) from None


OK_TRAILERS: tuple[Header, ...] = ((b"grpc-status", b"0"),)


def trailers(status: Status, message: str) -> Sequence[Header]:
    """The end of a response."""
    if status is Status.OK and not message:
        return OK_TRAILERS
    headers = [(b"grpc-status", str(status.value).encode())]
    if message:
        headers.append((b"grpc-message", encode_status_message(message).encode()))
    return headers


def error_trailers(error: Exception, method: str, tags: Tags | None = None) -> Sequence[Header]:
    """The end of a response that has failed; `method` names the call for the log, whose line has the `tags`. Where the
    same call may succeed soon it says when to try it again, as gRPC's retries have it (gRFC A6), and where a quota is
    used up, what is left."""
    end = trailers(*status_of(error, method, tags))
    if not isinstance(error, ServerError) or error.retry_after is None:
        return end
    pushback = (b"grpc-retry-pushback-ms", b"%d" % math.ceil(error.retry_after * 1000))
    fields = error.fields if isinstance(error, QuotaExceeded) else ()
    return [*end, pushback, *[(name.encode(), value.encode()) for name, value in fields]]


def error_response(error: Exception, method: str) -> Sequence[Header]:
    """The whole response to a call that fails before it has begun; `method` names it for the log."""
    return [*RESPONSE_HEADERS, *error_trailers(error, method)]


def _shown(value: bytes) -> str:
    return value[:100].decode("latin-1")
