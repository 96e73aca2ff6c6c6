"""Handlers of `/v1/messages`: the messages of a chat in, the assistant's next one out, whole or as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from protocol.http.anthropic.codec.answers import (
    PING,
    MessageUsage,
    Stop,
    message,
    message_end,
    message_start,
    stop_of,
)
from protocol.http.anthropic.codec.blocks import BlockEvents, ContentBlocks
from protocol.http.anthropic.codec.chats import chat_of, messages_chat
from protocol.http.anthropic.codec.messages import picture_places
from protocol.http.anthropic.codec.requests import (
    COUNT_REFUSED,
    MESSAGES_REFUSED,
    CountTokensRequest,
    MessagesRequest,
)
from protocol.http.anthropic.errors import REQUEST_ID, anthropic_error_event, anthropic_status
from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import Call, converted, open_call, read_body
from protocol.http.openai.chats.chat import Chat, plan_chat
from protocol.http.openai.chats.chat import count_tokens as count_chat
from protocol.http.openai.chats.choice import ChatAnswers, ChatChoice
from protocol.http.openai.choice import ChoiceText
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.generation import generate_all
from protocol.http.openai.streams.event_stream import EventStream, StreamForm
from protocol.http.reply import Reply, json_reply
from protocol.text.deltas import Delta

_READER = BodyReader(MessagesRequest, MESSAGES_REFUSED)
_COUNT_READER = BodyReader(CountTokensRequest, COUNT_REFUSED)
_STREAM = StreamForm("Anthropic", b"", PING, anthropic_error_event, anthropic_status)


async def messages(request: HttpRequest) -> Reply | None:
    """Cancelled when the client leaves, and the inference with it."""
    body = await read_body(request, _READER, lambda body: picture_places(body.messages))
    asked = await converted(request, partial(messages_chat, body))
    call = await open_call(request, asked.model, None, "msg", "_")
    call = replace(call, id_header=REQUEST_ID)
    chat = await plan_chat(call, asked, fits_context=True, wants_details=True)
    shows_thinking = body.thinking is None or body.thinking.display != "omitted"
    call.begin(chat.inferences.requests)
    if body.stream:
        await call.stream(lambda events: _stream(call, body, chat, shows_thinking, events), _STREAM)
        return None
    choice = _WholeMessage(chat.answers, chat.inferences.choices[0], shows_thinking=shows_thinking)
    await generate_all(chat.core, chat.inferences.requests, call.target.text.names, [choice])
    usage = await _usage(chat, call)
    return call.reply(message(call.id, call.target.name, choice.blocks.finish(), usage, _stop(choice, body, chat)))


async def count_tokens(request: HttpRequest) -> Reply:
    body = await read_body(request, _COUNT_READER)
    asked = await converted(request, partial(chat_of, body))
    return json_reply({"input_tokens": await count_chat(request, asked)})


async def _stream(call: Call, body: MessagesRequest, chat: Chat, shows_thinking: bool, events: EventStream) -> bytes:
    """Returns the last events."""
    choice = _StreamedMessage(call, chat, events, shows_thinking=shows_thinking)
    await generate_all(chat.core, chat.inferences.requests, call.target.text.names, [choice])
    return choice.finish() + message_end(_stop(choice, body, chat), await _usage(chat, call))


def _stop(choice: ChatChoice, body: MessagesRequest, chat: Chat) -> Stop:
    most = chat.inferences.prompts[0].max_tokens
    return stop_of(
        choice.text.finish_reason,
        choice.text.stop_string,
        has_calls=choice.has_calls,
        is_context_full=most is not None and most < body.max_tokens,
    )


async def _usage(chat: Chat, call: Call) -> MessageUsage:
    usage = await chat.inferences.usage(call.target.text)
    if usage is None:
        return MessageUsage()
    cached = chat.inferences.choices[0].cached_tokens
    return MessageUsage(usage.prompt_tokens, usage.completion_tokens, cached)


class _WholeMessage(ChatChoice):
    """A message that is sent whole."""

    def __init__(self, answers: ChatAnswers, text: ChoiceText, *, shows_thinking: bool) -> None:
        super().__init__(answers, text)
        self.blocks = ContentBlocks(shows_thinking=shows_thinking)

    async def show(self, deltas: Sequence[Delta]) -> None:
        self.blocks.add(deltas)


class _StreamedMessage(ChatChoice):
    """A message that is sent as it comes. Its first event waits for the model's first response, which may count the
    prompt."""

    def __init__(self, call: Call, chat: Chat, events: EventStream, *, shows_thinking: bool) -> None:
        super().__init__(chat.answers, chat.inferences.choices[0])
        self._call = call
        self._prompt_tokens = chat.inferences.prompts[0].size or 0
        self._events = events
        self._blocks = BlockEvents(shows_thinking=shows_thinking)
        self._has_begun = False

    async def show(self, deltas: Sequence[Delta]) -> None:
        data = b"" if self._has_begun else self._begin()
        data += self._blocks.events(deltas)
        if data:
            await self._events.send(data)

    def finish(self) -> bytes:
        return self._blocks.finish()

    def _begin(self) -> bytes:
        self._has_begun = True
        text = self.text
        usage = MessageUsage(text.input_tokens or self._prompt_tokens, text.output_tokens, text.cached_tokens)
        return message_start(self._call.id, self._call.target.name, usage)
