"""Handlers of `/v1/responses`: items in, the items of an answer out, whole or as they come."""

from __future__ import annotations

import secrets
from dataclasses import replace

from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import converted, open_call, read_body
from protocol.http.openai.chats import count_tokens, plan_chat
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.event_stream import EventStream, StreamForm
from protocol.http.openai.responses.answer import ResponseAnswer
from protocol.http.openai.responses.chats import chat_of, responses_chat
from protocol.http.openai.responses.items import items_of
from protocol.http.openai.responses.requests import (
    INPUT_TOKENS_REFUSED,
    RESPONSES_REFUSED,
    InputTokensRequest,
    ResponsesRequest,
)
from protocol.http.openai.responses.run import ResponseRun
from protocol.http.reply import Reply, json_reply

_READER = BodyReader(ResponsesRequest, RESPONSES_REFUSED)
_COUNT_READER = BodyReader(InputTokensRequest, INPUT_TOKENS_REFUSED)


async def create(request: HttpRequest) -> Reply | None:
    """Cancelled when the client leaves, and the inference with it."""
    body = await read_body(request, _READER)
    asked = await converted(request, lambda: responses_chat(body, items_of(body.input)))
    call = open_call(request, asked.model, body.request_id, "resp", "_")
    call = replace(call, id=f"resp_{secrets.token_hex(24)}")  # that of the request is the client's, and may be guessed
    chat = await plan_chat(call, asked, fits_context=True, wants_details=True)
    answer = ResponseAnswer(call.id, call.created, call.target.name, body, is_stored=False)
    run = ResponseRun(request.core, call.target.text, chat, answer)
    call.begin(chat.inferences.requests)
    if not body.stream:
        await run.run()
        return call.reply(answer.members)

    async def stream(events: EventStream) -> bytes:
        return await run.run(events.send)

    await call.stream(stream, StreamForm(end=b"", error=run.failed))
    return None


async def input_tokens(request: HttpRequest) -> Reply:
    body = await read_body(request, _COUNT_READER)
    asked = await converted(request, lambda: chat_of(body, items_of(body.input)))
    return json_reply({"object": "response.input_tokens", "input_tokens": await count_tokens(request, asked)})
