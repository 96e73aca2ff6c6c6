"""The handler of inference: decode, ask the core, encode, compress where the client likes it.

Source: reference sections "Infer request" and "Outputs and response".
"""

from __future__ import annotations

import trio

from protocol.http.compression import IDENTITY, MIN_COMPRESSED_SIZE, choose_encoding, compress
from protocol.http.exchange import HttpRequest, Reply
from protocol.http.infer_codec import (
    HEADER_LENGTH,
    decode_infer_request,
    encode_infer_response,
    parse_header_length,
)


async def infer(request: HttpRequest) -> Reply:
    """Cancelled when the client leaves, and `InferenceCore.infer` with it."""
    header_length = parse_header_length(request.headers.get(HEADER_LENGTH), len(request.body))
    inference, encoding = decode_infer_request(
        request.body,
        header_length,
        model_name=request.model_name,
        model_version=request.model_version,
        max_input_size=request.settings.max_input_size,
    )
    response = await request.core.infer(inference)
    headers, parts = encode_infer_response(response, encoding)
    # One write of one buffer costs less than several of views: the transport copies each part anyway.
    body = parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)
    coding = choose_encoding(request.headers.get(b"accept-encoding"))
    if coding != IDENTITY and len(body) >= MIN_COMPRESSED_SIZE:
        body = await trio.to_thread.run_sync(compress, body, coding)
        headers = (*headers, (b"content-encoding", coding.encode()))
    return Reply(headers=headers, body=body)
