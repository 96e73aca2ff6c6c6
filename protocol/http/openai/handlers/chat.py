"""Handler of `/v1/chat/completions`: the messages of a chat in, the assistant's next one out, whole or as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trio

from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import Call, open_call, read_body
from protocol.http.openai.choice import ChoiceText
from protocol.http.openai.codec.answers import Message, answer
from protocol.http.openai.codec.chunks import ChatChunks, ChunkHead, Usage
from protocol.http.openai.codec.logprobs import Entries, TokenBytes, chat_logprobs
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import ChatRequest, StreamOptions
from protocol.http.openai.codec.sampling import check_stream_options, sampling_parameters, wanted_logprobs
from protocol.http.openai.codec.tensors import TextPart
from protocol.http.openai.event_stream import EventStream
from protocol.http.openai.generation import generate_all
from protocol.http.openai.inferences import Inferences, plan_inferences
from protocol.http.openai.prompts import Prompt, chat_prompt, measured
from protocol.http.openai.tools import ToolPlan, answer_parser, needs_special_tokens, plan_tools
from protocol.http.reply import Reply
from protocol.text.deltas import ContentDelta, Delta, ToolCallStart
from protocol.text.model import TextModel
from protocol.text.output_parser import OutputParser

_READER = BodyReader(ChatRequest)

_WHOLE, _CHUNK = "chat.completion", "chat.completion.chunk"


async def chat_completions(request: HttpRequest) -> Reply | None:
    """Cancelled when the client leaves, and every inference with it."""
    body = await read_body(request, _READER)
    call = open_call(request, body.model, body.request_id, "chatcmpl")
    text = call.target.text
    check_stream_options(body)
    tools = plan_tools(body, text)
    prompt = await trio.to_thread.run_sync(_prompt, body, text, tools, request.settings.openai.default_max_tokens)
    inferences = plan_inferences(call, body, [prompt], _sampling(body, text, tools))
    make_parser = answer_parser(tools, text, prompt.text, shows_reasoning=body.include_reasoning is not False)
    answers = _Answers(body, text, tools, make_parser)
    call.begin(inferences.requests)
    if body.stream:
        await call.stream(lambda events: _stream(call, body.stream_options, inferences, answers, events))
        return None
    receivers = [_WholeChoice(answers, choice) for choice in inferences.choices]
    await generate_all(request.core, inferences.requests, text.names, receivers)
    usage = await inferences.usage(text)
    choices = [each.members(index) for index, each in enumerate(receivers)]
    return call.reply(answer(call.id, _WHOLE, call.created, call.target.name, choices, usage))


def _prompt(body: ChatRequest, text: TextModel, tools: ToolPlan, default_max_tokens: int | None) -> Prompt:
    """In a thread: a template is a program."""
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    prompt = chat_prompt(
        text,
        body.messages,
        tools.shown,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        documents=body.documents,
        variables=variables,
    )
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    adds = bool(body.add_special_tokens)
    return measured(text, prompt, adds_special_tokens=adds, max_tokens=wanted, default=default_max_tokens)


def _sampling(body: ChatRequest, text: TextModel, tools: ToolPlan) -> dict[str, Any]:
    sampling = sampling_parameters(body)
    if tools.structure is not None:
        sampling["structured_outputs"] = tools.structure
    if body.skip_special_tokens is None and needs_special_tokens(tools, text):
        sampling["skip_special_tokens"] = False
    return sampling


async def _stream(
    call: Call, options: StreamOptions | None, inferences: Inferences, answers: _Answers, events: EventStream
) -> bytes:
    """Returns the chunk with the usage, where one is wanted."""
    wants_usage = options is not None and bool(options.include_usage)
    head = ChunkHead(call.id, _CHUNK, call.created, call.target.name, has_usage=wants_usage)
    shows_usage = wants_usage and options is not None and bool(options.continuous_usage_stats)
    receivers = [
        _StreamedChoice(answers, choice, ChatChunks(head, index), events, shows_usage=shows_usage)
        for index, choice in enumerate(inferences.choices)
    ]
    await generate_all(call.request.core, inferences.requests, call.target.text.names, receivers)
    return head.usage(await inferences.usage(call.target.text)) if wants_usage else b""


class _Answers:
    """How the answers of one call are read."""

    def __init__(
        self, body: ChatRequest, text: TextModel, tools: ToolPlan, make_parser: Callable[[], OutputParser | None]
    ) -> None:
        self.make_parser = make_parser
        self.top_logprobs = wanted_logprobs(body)
        self.token_bytes: TokenBytes = None if text.tokenizer is None else text.tokenizer.token_bytes
        # A named function is called because the client wants it, which ends the text as any does.
        self.ends_with_calls = tools.choice in ("auto", "required")

    def logprobs(self, entries: Entries) -> dict[str, Any] | None:
        if self.top_logprobs is None or not entries:
            return None
        return chat_logprobs(entries, self.top_logprobs, self.token_bytes)


class _Choice:
    """Reads the deltas of one choice."""

    def __init__(self, answers: _Answers, text: ChoiceText) -> None:
        self.answers = answers
        self.text = text
        self._parser = answers.make_parser()
        self._has_calls = False
        self._has_ended = False
        self._logprobs: list[Any] = []

    @property
    def finish_reason(self) -> str:
        reason = self.text.finish_reason
        return "tool_calls" if self._has_calls and reason == "stop" and self.answers.ends_with_calls else reason

    async def take(self, part: TextPart) -> bool:
        if self._has_ended:
            return True
        text = self.text.take(part)
        if part.logprobs:
            self._logprobs += part.logprobs
        await self._show(text)
        return not self.text.is_stopped

    async def end(self) -> None:
        if not self._has_ended:
            await self._show(self.text.end())

    async def _show(self, text: str) -> None:
        deltas = self._read(text)
        if self.text.finish_reason:
            self._has_ended = True
            if self._parser is not None:
                deltas += self._counted(self._parser.finish())
        await self.show(deltas)

    def _read(self, text: str) -> list[Delta]:
        if not text:
            return []
        return [ContentDelta(text)] if self._parser is None else self._counted(self._parser.push(text))

    def _counted(self, deltas: list[Delta]) -> list[Delta]:
        self._has_calls = self._has_calls or any(isinstance(delta, ToolCallStart) for delta in deltas)
        return deltas

    async def show(self, deltas: Sequence[Delta]) -> None:
        raise NotImplementedError


class _WholeChoice(_Choice):
    """A choice of an answer that is sent whole."""

    def __init__(self, answers: _Answers, text: ChoiceText) -> None:
        super().__init__(answers, text)
        self._message = Message()

    async def show(self, deltas: Sequence[Delta]) -> None:
        self._message.add(deltas)

    def members(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "message": self._message.members(),
            "logprobs": self.answers.logprobs(self._logprobs),
            "finish_reason": self.finish_reason,
        }


class _StreamedChoice(_Choice):
    """A choice that is sent as it comes. Its first event is that of its role, together with what there is."""

    def __init__(
        self, answers: _Answers, text: ChoiceText, chunks: ChatChunks, events: EventStream, *, shows_usage: bool
    ) -> None:
        super().__init__(answers, text)
        self._chunks = chunks
        self._events = events
        self._shows_usage = shows_usage
        self._waiting = chunks.role
        self._is_plain = self._parser is None and text.is_plain and answers.top_logprobs is None and not shows_usage

    async def take(self, part: TextPart) -> bool:
        if self._is_plain and not part.finish_reason and not self._has_ended:
            text = self.text.take(part)
            if text or self._waiting:
                data = self._chunks.content(text) if text else b""
                if self._waiting:
                    data, self._waiting = self._waiting + data, b""
                await self._events.send(data)
            return True
        return await super().take(part)

    async def show(self, deltas: Sequence[Delta]) -> None:
        data, self._waiting = self._waiting, b""
        if deltas or self._has_ended:
            entries, self._logprobs = self._logprobs, []
            usage = Usage(self.text.input_tokens, self.text.output_tokens) if self._shows_usage else None
            data += self._chunks.deltas(
                deltas,
                logprobs=self.answers.logprobs(entries),
                finish_reason=self.finish_reason if self._has_ended else "",
                usage=usage,
            )
        if data:
            await self._events.send(data)
