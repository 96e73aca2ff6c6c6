"""Request headers of a gRPC call: method, timeout, encoding, and whether it is refused. No I/O.

Source: "gRPC over HTTP2", section Requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpclib.const import Handler

from protocol.errors import InvalidArgument, PayloadTooLarge, ServerError, Unsupported
from protocol.grpc.call.compression import check_encoding
from protocol.grpc.call.headers import Header, decode_timeout_seconds, error_response, header_size, refusal
from protocol.load_report import FORMAT_HEADER
from protocol.log.request_ids import NO_IDS, ClientIds
from protocol.sequence_header import SEQUENCE_HEADER_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class RequestHead:
    """A client's calls share one as long as their headers are the same.

    Attributes:
        method: the path, `/package.Service/Method`.
        handler: of the call; None where there is a `refusal`.
        timeout: in seconds, None without.
        encoding: of compressed messages.
        is_direct: its calls may be answered without a task (`direct_infer`).
        refusal: the whole response to a call that is not served.
        limit: which limit refuses it, if it is one.
        error: what the refusal says, where it is a call of gRPC.
        client: the ids that the client gives.
        sequence_id: as its metadata has it, empty without.
    """

    headers: Sequence[Header]
    method: str
    handler: Handler | None = None
    timeout: float | None = None
    encoding: str = "identity"
    is_direct: bool = False
    refusal: Sequence[Header] | None = None
    limit: str | None = None
    error: ServerError | None = None
    client: ClientIds = NO_IDS
    sequence_id: str = ""


def read_head(
    headers: Sequence[Header], handlers: Mapping[str, Handler], max_header_size: int, direct_method: str | None = None
) -> RequestHead:
    """Interpret the headers of a request, valid or not."""
    fields = dict(headers)
    method = fields.get(b":path", b"").decode("latin-1")
    client = ClientIds.of(fields)
    refused = refusal(fields)
    if refused is not None:
        return RequestHead(headers, method, refusal=refused, client=client)
    try:
        if (size := header_size(headers)) > max_header_size:
            raise PayloadTooLarge(
                f"the headers of {size} bytes are larger than the server's limit of {max_header_size} bytes"
            )
        handler = handlers.get(method)
        if handler is None:
            raise Unsupported(f"unknown method '{method[:200]}'")
        timeout = fields.get(b"grpc-timeout")
        encoding = fields.get(b"grpc-encoding", b"identity").decode("latin-1")
        check_encoding(encoding)
        seconds = None if timeout is None else decode_timeout_seconds(timeout)
    except ServerError as error:
        limit = "max_header_size" if isinstance(error, PayloadTooLarge) else None
        response = error_response(error, method)
        return RequestHead(headers, method, refusal=response, limit=limit, error=error, client=client)
    is_direct = method == direct_method and FORMAT_HEADER not in fields
    sequence_id = fields.get(SEQUENCE_HEADER_BYTES, b"").decode("latin-1")
    return RequestHead(
        headers, method, handler, seconds, encoding, is_direct=is_direct, client=client, sequence_id=sequence_id
    )


def malformed_head(reason: str) -> RequestHead:
    """The head of a request whose headers are malformed."""
    error = InvalidArgument(f"the call's headers are malformed: {reason[:200]}")
    return RequestHead((), "", refusal=error_response(error, ""))
