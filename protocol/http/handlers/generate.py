"""Handlers of the generate extension: one response as JSON, or a stream of server-sent events.

Both serve models of any kind, decoupled ones as well. Source: reference section "Generate".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from protocol.core import RespondsAtOnce
from protocol.errors import Internal, InvalidArgument, QuotaExceeded, ServerError, text_of
from protocol.http.codec.generate import decode_generate_request, encode_generate_response
from protocol.http.codec.long_generate import decode_long_generate, encode_long_generate, is_long
from protocol.http.errors import error_reply, name_reply
from protocol.http.exchange import JSON_IN_THREAD_ABOVE, JSON_SLICED_ABOVE, BodyWriter, HttpRequest
from protocol.http.handlers.failed_request import describe
from protocol.http.reply import JSON_CONTENT, Headers, Reply
from protocol.load_report import load_report_headers
from protocol.log.request_ids import REQUEST_ID
from protocol.log.tags import of_call
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.sync.sliced import run_sliced

logger = logging.getLogger(__name__)

# As clients of TensorRT-LLM's models name a request that they may stop.
_OWN_ID = b"triton-request-id"

EVENT_STREAM: Headers = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"))


async def generate(request: HttpRequest) -> Reply:
    """The one response of the model.

    Raises:
        InvalidArgument: the model gave none, or a second one; it is then stopped.
    """
    answers: list[Sequence[bytes]] = []

    async def keep(response: InferenceResponse) -> None:
        if answers:
            raise _not_one()
        answers.append(await _encoded(response))

    await request.core.infer_stream(await decode(request), keep)
    if not answers:
        raise _not_one()
    return Reply(headers=(*JSON_CONTENT, *_load_report(request)), body=answers[0][0], tail=answers[0][1:])


async def generate_stream(request: HttpRequest) -> Reply | None:
    """An event for each response as it comes. The first one decides the status, also where it is an error. What is
    wrong with the request itself is an error reply, as it is of `generate`, and so is a quota that is used up. A model
    that ends without a response gives an empty stream."""
    writer = request.writer

    async def begin(status: int = 200) -> None:
        if request.trace is not None:
            request.trace.stamp("HTTP_SEND_START")
        await writer.start(status, (*EVENT_STREAM, (REQUEST_ID, request.request_id), *_load_report(request)))

    inference = await decode(request)
    try:
        await request.core.infer_stream(inference, _EventSender(writer, begin))
    except Exception as exc:
        if isinstance(exc, QuotaExceeded) and not writer.has_started:
            raise
        error = _told(exc, request)
        name_reply(error, request.request_id)
        if not writer.has_started:
            await begin(error.status)
        await writer.send(_event(error.content))
    if not writer.has_started:
        await begin()
    await writer.end()
    if request.trace is not None:
        request.trace.stamp("HTTP_SEND_END")
    return None


class _EventSender(RespondsAtOnce):
    """Sends an event for each response, after what `begin` sends. In between, none need be awaited."""

    def __init__(self, writer: BodyWriter, begin: Callable[[], Awaitable[None]]) -> None:
        self._writer = writer
        self._begin = begin

    async def __call__(self, response: InferenceResponse) -> None:
        parts = await _encoded(response)
        if not self._writer.has_started:
            await self._begin()
        if len(parts) == 1:
            await self._writer.send(_event(parts[0]))
            return
        for part in (b"data: ", *parts, b"\n\n"):
            await self._writer.send(part)

    def respond_at_once(self, response: InferenceResponse) -> bool:
        if response.is_final or not self._writer.has_started or is_long(response):
            return False
        return self._writer.send_at_once(_event(encode_generate_response(response)))


async def decode(request: HttpRequest) -> InferenceRequest:
    """Read the body, in slices where that takes long, or in a thread. Raises what is wrong with it."""
    inference = await _decoded(request)
    if not inference.id and (given := request.headers.get(_OWN_ID)) is not None:
        inference.id = given.decode("latin-1")
    inference.trace = request.trace
    inference.origin = request.origin
    inference.charge = request.charge
    request.inference = inference
    return inference


async def _decoded(request: HttpRequest) -> InferenceRequest:
    metadata = request.core.model_metadata(request.model_name, request.model_version)
    version, most = request.model_version, request.settings.max_input_size
    size = len(request.body)
    if size > JSON_SLICED_ABOVE:
        work = decode_long_generate(request.body, metadata, model_version=version, max_input_size=most)
        if (inference := await run_sliced(work)) is not None:
            return inference
    read = partial(decode_generate_request, request.body, metadata, model_version=version, max_input_size=most)
    return await trio.to_thread.run_sync(read) if size > JSON_IN_THREAD_ABOVE else read()


async def _encoded(response: InferenceResponse) -> Sequence[bytes]:
    """The parts of the text."""
    if is_long(response):
        return await run_sliced(encode_long_generate(response))
    return (encode_generate_response(response),)


def _load_report(request: HttpRequest) -> Headers:
    return load_report_headers(request.headers, request.services.load_report, request.model_name)


def _event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def _told(error: Exception, request: HttpRequest) -> Reply:
    if not isinstance(error, ServerError):
        extra = {"tags": of_call(request.origin, model=request.model_name)}
        logger.error("a stream of model '%s' failed", request.model_name, exc_info=error, extra=extra)
        error = Internal(f"internal error: {text_of(error)}")
    reply = error_reply(error)
    request.failure = error
    failed = partial(describe, request, request.path_parameters, request.arrival_ns, request.origin)
    request.services.failure_log.note("HTTP generate_stream", reply.status, error, failed)
    return reply


def _not_one() -> InvalidArgument:
    return InvalidArgument(
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
        "number of responses"
    )
