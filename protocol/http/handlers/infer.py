"""Handler of inference: decodes the request, calls the core, encodes and compresses the response.

Source: reference sections "Infer request" and "Outputs and response".
"""

from __future__ import annotations

from functools import partial

import trio

from protocol.access.forwarding import put_over
from protocol.errors import Decoupled, Unsupported
from protocol.http.codec.compression import IDENTITY, MIN_COMPRESSED_SIZE, choose_encoding, compress
from protocol.http.codec.infer import (
    HEADER_LENGTH,
    DecodedRequest,
    OutputEncoding,
    encode_infer_response,
    parse_header_length,
)
from protocol.http.codec.long_answer import encode_long_response
from protocol.http.codec.long_infer import decode_long_request
from protocol.http.codec.raw_request import decode_raw_request
from protocol.http.exchange import JSON_IN_THREAD_ABOVE, JSON_SLICED_ABOVE, HttpRequest
from protocol.http.reply import Reply
from protocol.load_report import load_report_headers
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.sequence_header import SEQUENCE_HEADER_BYTES, put_sequence_id
from protocol.shared_memory.placement import PlacedRequest, Placement
from protocol.sync.sliced import run_sliced


def decoupled() -> Unsupported:
    """The answer for a model that gives any number of responses."""
    return Unsupported("HTTP end point doesn't support models with decoupled transaction policy")


async def infer(request: HttpRequest) -> Reply:
    """Run an inference request. Cancelled when the client leaves, and `InferenceCore.infer` with it."""
    return await answer(request, await read(request))


async def infer_body(request: HttpRequest, header_length: int | None) -> Reply:
    """As `infer`; `header_length` is that of the body's JSON, or None where all of it is."""
    return await answer(request, await _read(request, header_length))


async def read(request: HttpRequest) -> DecodedRequest:
    """What the body asks for; with `answer` this is `infer`."""
    return await _read(request, parse_header_length(request.headers.get(HEADER_LENGTH), len(request.body)))


async def _read(request: HttpRequest, header_length: int | None) -> DecodedRequest:
    body, name, version = request.body, request.model_name, request.model_version
    known = request.templates.find(body, header_length, model_name=name, model_version=version)
    return known or await _decode(request, header_length)


async def answer(request: HttpRequest, decoded: DecodedRequest) -> Reply:
    """Run what was read."""
    inference = request.inference = decoded.request
    inference.trace = request.trace
    inference.origin = request.origin
    inference.charge = request.charge
    if not request.services.forwarding.is_empty:
        forward_headers(request, inference)
    name_sequence(request, inference)
    try:
        if decoded.placement is None:
            response = await request.services.core.infer(inference)
        else:
            response = await _infer_placed(request, inference, decoded.placement)
    except Decoupled:
        raise decoupled() from None
    reply = await encode(response, decoded.encoding, request.headers.get(b"accept-encoding"))
    if more := load_report_headers(request.headers, request.services.load_report, request.model_name):
        reply.headers = (*reply.headers, *more)
    return reply


async def encode(response: InferenceResponse, encoding: OutputEncoding, accepted: bytes | None) -> Reply:
    """The reply, compressed as the client's `Accept-Encoding` allows. Raises as `encode_infer_response`."""
    reply = encode_at_once(response, encoding, accepted)
    if reply is not None:
        return reply
    headers, parts = await run_sliced(encode_long_response(response, encoding))
    reply = Reply(200, headers, parts[0], parts[1:])
    coding = _coding(reply, accepted)
    if coding == IDENTITY:
        return reply
    body = await trio.to_thread.run_sync(compress, parts, coding)
    return Reply(200, (*headers, (b"content-encoding", coding.encode())), body)


def encode_at_once(response: InferenceResponse, encoding: OutputEncoding, accepted: bytes | None) -> Reply | None:
    """As `encode`; None where that would block the event loop for too long."""
    if not encoding.is_all_binary and _json_size(response, encoding) > JSON_SLICED_ABOVE:
        return None
    headers, parts = encode_infer_response(response, encoding)
    reply = Reply(200, headers, parts.pop(0), parts)
    return reply if accepted is None or _coding(reply, accepted) == IDENTITY else None


def _coding(reply: Reply, accepted: bytes | None) -> str:
    return IDENTITY if reply.length < MIN_COMPRESSED_SIZE else choose_encoding(accepted)


def _json_size(response: InferenceResponse, encoding: OutputEncoding) -> int:
    """Bytes of tensors that go as JSON; at least, where that is not much."""
    size = 0
    for tensor in response.outputs:
        size += memoryview(tensor.data).nbytes
    if size <= JSON_SLICED_ABOVE:  # mostly, whatever goes as JSON
        return size
    return sum([tensor.byte_size for tensor in response.outputs if not encoding.is_binary(tensor.name)])


async def _decode(request: HttpRequest, header_length: int | None) -> DecodedRequest:
    if request.core.is_decoupled(request.model_name, request.model_version):  # said also where the request is wrong
        raise decoupled()
    return await decode(request, header_length)


async def decode(request: HttpRequest, header_length: int | None) -> DecodedRequest:
    """Read the body, in slices where that takes long. Raises what is wrong with it."""
    body = request.body
    model_name, model_version = request.model_name, request.model_version
    max_input_size = request.settings.max_input_size
    if header_length == 0 or not body:
        return decode_raw_request(
            body,
            request.core.model_metadata(model_name, model_version),
            has_batch=request.core.model_config(model_name, model_version).get("max_batch_size", 0) > 0,
            model_version=model_version,
            max_input_size=max_input_size,
        )
    json_size = len(body) if header_length is None else header_length
    if json_size > JSON_SLICED_ABOVE:
        work = decode_long_request(
            body,
            header_length,
            model_name=model_name,
            model_version=model_version,
            max_input_size=max_input_size,
        )
        if (decoded := await run_sliced(work)) is not None:
            return decoded
    read = partial(
        request.templates.decode,
        body,
        header_length,
        model_name=model_name,
        model_version=model_version,
        max_input_size=max_input_size,
    )
    return await trio.to_thread.run_sync(read) if json_size > JSON_IN_THREAD_ABOVE else read()


def forward_headers(request: HttpRequest, inference: InferenceRequest) -> None:
    """Make parameters of the headers that are to be."""
    headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.sent_headers)
    put_over(inference.parameters, request.services.forwarding.parameters(headers))


def name_sequence(request: HttpRequest, inference: InferenceRequest) -> None:
    """Take the sequence's id from its header, if that is there. Raises InvalidArgument."""
    if (given := request.headers.get(SEQUENCE_HEADER_BYTES)) is not None:
        put_sequence_id(inference, given.decode("latin-1"))


async def _infer_placed(request: HttpRequest, inference: InferenceRequest, placement: Placement) -> InferenceResponse:
    placed = await PlacedRequest.fetch(inference, placement, request.lease, request.core)
    return await placed.deliver(await request.core.infer(inference))
