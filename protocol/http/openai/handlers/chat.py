"""Handler of `/v1/chat/completions`: the messages of a chat in, the assistant's next one out, whole or as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import Call, open_call, read_body
from protocol.http.openai.chats.chat import Chat, plan_chat
from protocol.http.openai.chats.choice import ChatAnswers, ChatChoice
from protocol.http.openai.choice import ChoiceText
from protocol.http.openai.codec.answers import Message, answer
from protocol.http.openai.codec.chunks import ChatChunks, ChunkHead, Usage
from protocol.http.openai.codec.images import url_places
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import ChatRequest, StreamOptions
from protocol.http.openai.codec.sampling import check_stream_options
from protocol.http.openai.codec.tensors import TextPart
from protocol.http.openai.generation import generate_all
from protocol.http.openai.streams.event_stream import EventStream
from protocol.http.reply import Reply
from protocol.text.deltas import Delta

_READER = BodyReader(ChatRequest)

_WHOLE, _CHUNK = "chat.completion", "chat.completion.chunk"


async def chat_completions(request: HttpRequest) -> Reply | None:
    """Cancelled when the client leaves, and every inference with it."""
    body = await read_body(request, _READER, lambda body: url_places(body.messages))
    call = await open_call(request, body.model, body.request_id, "chatcmpl")
    text = call.target.text
    check_stream_options(body)
    chat = await plan_chat(call, body)
    inferences = chat.inferences
    call.begin(inferences.requests)
    if body.stream:
        await call.stream(lambda events: _stream(call, body.stream_options, chat, events))
        return None
    receivers = [_WholeChoice(chat.answers, choice) for choice in inferences.choices]
    await generate_all(chat.core, inferences.requests, text.names, receivers)
    usage = await inferences.usage(text)
    choices = [each.members(index) for index, each in enumerate(receivers)]
    return call.reply(answer(call.id, _WHOLE, call.created, call.target.name, choices, usage))


async def _stream(call: Call, options: StreamOptions | None, chat: Chat, events: EventStream) -> bytes:
    """Returns the chunk with the usage, where one is wanted."""
    wants_usage = options is not None and bool(options.include_usage)
    head = ChunkHead(call.id, _CHUNK, call.created, call.target.name, has_usage=wants_usage)
    shows_usage = wants_usage and options is not None and bool(options.continuous_usage_stats)
    inferences = chat.inferences
    receivers = [
        _StreamedChoice(chat.answers, choice, ChatChunks(head, index), events, shows_usage=shows_usage)
        for index, choice in enumerate(inferences.choices)
    ]
    await generate_all(chat.core, inferences.requests, call.target.text.names, receivers)
    return head.usage(await inferences.usage(call.target.text)) if wants_usage else b""


class _WholeChoice(ChatChoice):
    """A choice of an answer that is sent whole."""

    def __init__(self, answers: ChatAnswers, text: ChoiceText) -> None:
        super().__init__(answers, text)
        self._message = Message()

    async def show(self, deltas: Sequence[Delta]) -> None:
        self._message.add(deltas)

    def members(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "message": self._message.members(),
            "logprobs": self.answers.logprobs(self.entries),
            "finish_reason": self.finish_reason,
        }


class _StreamedChoice(ChatChoice):
    """A choice that is sent as it comes. Its first event is that of its role, together with what there is."""

    def __init__(
        self, answers: ChatAnswers, text: ChoiceText, chunks: ChatChunks, events: EventStream, *, shows_usage: bool
    ) -> None:
        super().__init__(answers, text)
        self._chunks = chunks
        self._events = events
        self._shows_usage = shows_usage
        self._waiting = chunks.role
        self._is_plain = self.parser is None and text.is_plain and answers.top_logprobs is None and not shows_usage

    async def take(self, part: TextPart) -> bool:
        if self._is_plain and not part.finish_reason and not self.has_ended:
            text = self.text.take(part)
            if text or self._waiting:
                data = self._chunks.content(text) if text else b""
                if self._waiting:
                    data, self._waiting = self._waiting + data, b""
                await self._events.send(data)
            return True
        return await super().take(part)

    def take_at_once(self, part: TextPart) -> bool:
        if not self._is_plain or part.finish_reason or self.has_ended or self._waiting:
            return False
        if part.text and not self._events.send_at_once(self._chunks.content(part.text)):
            return False
        self.text.take(part)
        return True

    async def show(self, deltas: Sequence[Delta]) -> None:
        data, self._waiting = self._waiting, b""
        if deltas or self.has_ended:
            entries, self.entries = self.entries, []
            usage = Usage(self.text.input_tokens, self.text.output_tokens) if self._shows_usage else None
            data += self._chunks.deltas(
                deltas,
                logprobs=self.answers.logprobs(entries),
                finish_reason=self.finish_reason if self.has_ended else "",
                usage=usage,
            )
        if data:
            await self._events.send(data)
