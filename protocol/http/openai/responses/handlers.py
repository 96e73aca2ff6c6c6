"""Handler of `/v1/responses`: items in, the items of an answer out, whole, as they come, or in the background."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import Call, converted, open_call, read_body
from protocol.http.openai.chats.chat import Chat, count_tokens, plan_chat
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import ChatRequest
from protocol.http.openai.errors import FieldError
from protocol.http.openai.responses.answer import ResponseAnswer, repeated
from protocol.http.openai.responses.background import QueuedRun, follow
from protocol.http.openai.responses.chats import chat_of, responses_chat
from protocol.http.openai.responses.conversation import conversation_of, previous_response
from protocol.http.openai.responses.requests import (
    INPUT_TOKENS_REFUSED,
    RESPONSES_REFUSED,
    InputTokensRequest,
    ResponsesRequest,
)
from protocol.http.openai.responses.run import ResponseRun
from protocol.http.openai.streams.event_stream import EventStream, StreamForm
from protocol.http.reply import JSON_CONTENT, Reply, json_reply
from protocol.responses.event_log import EventLog
from protocol.responses.store import KeptResponse

_READER = BodyReader(ResponsesRequest, RESPONSES_REFUSED)
_COUNT_READER = BodyReader(InputTokensRequest, INPUT_TOKENS_REFUSED)


@dataclass(frozen=True, slots=True)
class _Asked:
    """`items` are what is kept of its input."""

    chat: ChatRequest
    repeated: Mapping[str, msgspec.Raw]
    items: bytes


async def create(request: HttpRequest) -> Reply | None:
    """Cancelled when the client leaves, and the inference with it, unless it runs in the background."""
    body = await read_body(request, _READER)
    keeps = request.services.responses.is_on and body.store is not False
    if body.background and not keeps:
        raise FieldError("'background': only for responses that are kept: 'store' has to be true", "background")
    asked = await _asked(request, body, keeps)
    call = await open_call(request, asked.chat.model, body.request_id, "resp", "_")
    call = replace(call, id=f"resp_{secrets.token_hex(24)}")  # that of the request is the client's, and may be guessed
    chat = await _plan(call, body, asked)
    answer = ResponseAnswer(call.id, call.created, call.target.name, asked.repeated, is_stored=keeps)
    if body.background:
        return await _begin(call, body, asked, ResponseRun(call.target.text, chat, answer))

    def keep(answer: ResponseAnswer) -> None:
        kept = KeptResponse(call.id, request.caller, asked.items, answer.encode())
        if not (keeps and request.services.responses.keep(kept)):
            answer.is_not_kept()

    call.begin(chat.inferences.requests)
    return await _answer(call, body, ResponseRun(call.target.text, chat, answer, keep))


async def input_tokens(request: HttpRequest) -> Reply:
    body = await read_body(request, _COUNT_READER)
    previous = previous_response(request, body)

    def convert() -> ChatRequest:
        conversation = conversation_of(body, previous)
        return chat_of(body, conversation.items, conversation.known)

    asked = await converted(request, convert, previous.size if previous else 0)
    return json_reply({"object": "response.input_tokens", "input_tokens": await count_tokens(request, asked)})


async def _asked(request: HttpRequest, body: ResponsesRequest, keeps: bool) -> _Asked:
    previous = previous_response(request, body)

    def convert() -> _Asked:
        conversation = conversation_of(body, previous)
        chat = responses_chat(body, conversation.items, conversation.known)
        return _Asked(chat, repeated(body), conversation.encode() if keeps else b"")

    return await converted(request, convert, previous.size if previous else 0)


async def _plan(call: Call, body: ResponsesRequest, asked: _Asked) -> Chat:
    truncates = body.truncation == "auto"
    try:
        return await plan_chat(call, asked.chat, fits_context=True, truncates=truncates, wants_details=True)
    except FieldError as error:
        if error.param == "messages":  # as chats have it
            error.param = "input"
        raise


async def _answer(call: Call, body: ResponsesRequest, run: ResponseRun) -> Reply | None:
    if not body.stream:
        await run.run()
        return call.reply(run.answer.members)

    async def stream(events: EventStream) -> bytes:
        return await run.run(events.send)

    await call.stream(stream, StreamForm(end=b"", error=run.failed))
    return None


async def _begin(call: Call, body: ResponsesRequest, asked: _Asked, run: ResponseRun) -> Reply | None:
    """Run it in the background. A client that reads its events and leaves does not stop it."""
    services = call.request.services
    log = EventLog() if body.stream else None
    kept = KeptResponse(call.id, call.request.caller, asked.items, run.answer.encode(), log)
    queued = QueuedRun(
        run, services.responses, services.failures, call.request.charge, call.request.request_id.decode()
    )
    queued.queue(kept)
    services.responses.begin(kept, queued)
    if log is None:
        return Reply(200, (*JSON_CONTENT, *call.headers), kept.answer)
    await call.stream(lambda events: follow(log, -1, events), StreamForm(end=b""))
    return None
