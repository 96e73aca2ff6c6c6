"""Handler of `/v1/completions`: a prompt, or several of them, in, what may follow out, whole or as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import TOKENIZE_IN_THREAD_ABOVE, Call, open_call, read_body
from protocol.http.openai.choice import ChoiceText
from protocol.http.openai.codec.answers import answer
from protocol.http.openai.codec.chunks import ChunkHead, CompletionChunks, Usage
from protocol.http.openai.codec.logprobs import CompletionLogprobs
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import CompletionRequest, StreamOptions
from protocol.http.openai.codec.sampling import check_stream_options, sampling_parameters, wanted_logprobs
from protocol.http.openai.codec.tensors import TextPart
from protocol.http.openai.errors import FieldError
from protocol.http.openai.generation import generate_all
from protocol.http.openai.inferences import MAX_INFERENCES, Inferences, plan_inferences
from protocol.http.openai.prompts import Prompt, completion_prompts, cut_prompt, measured
from protocol.http.openai.streams.event_stream import EventStream
from protocol.http.openai.threads import in_thread
from protocol.http.reply import Reply
from protocol.text.model import TextModel

_READER = BodyReader(CompletionRequest)

_KIND = "text_completion"


async def completions(request: HttpRequest) -> Reply | None:
    """Cancelled when the client leaves, and every inference with it."""
    body = await read_body(request, _READER)
    call = await open_call(request, body.model, body.request_id, "cmpl")
    text = call.target.text
    check_stream_options(body)
    if body.echo and body.logprobs is not None:
        raise FieldError("'echo' together with 'logprobs' cannot be honoured: prompts have none", "echo")
    prompts = await _prompts(request, body, text, request.settings.openai.default_max_tokens)
    inferences = plan_inferences(call, body, prompts, sampling_parameters(body))
    number = len(inferences.choices) // len(prompts)
    shown = [prompt.text if body.echo else "" for prompt in prompts for _ in range(number)]
    call.begin(inferences.requests)
    if body.stream:
        await call.stream(lambda events: _stream(call, body, inferences, shown, events))
        return None
    receivers = [
        _WholeChoice(choice, _logprobs(body), echo) for choice, echo in zip(inferences.choices, shown, strict=True)
    ]
    await generate_all(request.core, inferences.requests, text.names, receivers)
    usage = await inferences.usage(text)
    choices = [each.members(index) for index, each in enumerate(receivers)]
    return call.reply(answer(call.id, _KIND, call.created, call.target.name, choices, usage))


async def _prompts(request: HttpRequest, body: CompletionRequest, text: TextModel, default: int | None) -> list[Prompt]:
    """In a thread where the prompts are long, or of ids."""
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) > MAX_INFERENCES and not isinstance(prompt[0], int):
        raise FieldError(f"'prompt': expected at most {MAX_INFERENCES} prompts, got {len(prompt)}", "prompt")

    wants = body.add_special_tokens is not False

    def read() -> list[Prompt]:
        return [
            measured(
                text,
                cut_prompt(
                    text,
                    replace(each, adds_special_tokens=each.adds_special_tokens and wants),
                    body.truncate_prompt_tokens,
                    body.max_tokens,
                ),
                max_tokens=body.max_tokens,
                default=default,
            )
            for each in completion_prompts(prompt, text.tokenizer, text.name)
        ]

    is_short = isinstance(prompt, str) and len(prompt) <= TOKENIZE_IN_THREAD_ABOVE
    return read() if is_short else await in_thread(request, read)


async def _stream(
    call: Call, body: CompletionRequest, inferences: Inferences, shown: Sequence[str], events: EventStream
) -> bytes:
    """Returns the chunk with the usage, where one is wanted."""
    options = body.stream_options or StreamOptions()
    wants_usage = bool(options.include_usage)
    head = ChunkHead(call.id, _KIND, call.created, call.target.name, has_usage=wants_usage)
    shows_usage = wants_usage and bool(options.continuous_usage_stats)
    receivers = [
        _StreamedChoice(choice, _logprobs(body), echo, CompletionChunks(head, index), events, shows_usage=shows_usage)
        for index, (choice, echo) in enumerate(zip(inferences.choices, shown, strict=True))
    ]
    await generate_all(call.request.core, inferences.requests, call.target.text.names, receivers)
    return head.usage(await inferences.usage(call.target.text)) if wants_usage else b""


def _logprobs(body: CompletionRequest) -> CompletionLogprobs | None:
    """Those of one choice, where they are wanted."""
    top = wanted_logprobs(body)
    return None if top is None else CompletionLogprobs(top, by_ids=bool(body.return_tokens_as_token_ids))


class _WholeChoice:
    """A choice of an answer that is sent whole. Implements `generation.Receiver`."""

    def __init__(self, text: ChoiceText, logprobs: CompletionLogprobs | None, echo: str) -> None:
        self._text = text
        self._logprobs = logprobs
        self._parts = [echo]
        self._entries: list[Any] = []

    async def take(self, part: TextPart) -> bool:
        if not self._text.finish_reason:
            self._parts.append(self._text.take(part))
            self._entries += part.logprobs or ()
        return not self._text.is_stopped

    def take_at_once(self, part: TextPart) -> bool:
        return False

    async def end(self) -> None:
        if not self._text.finish_reason:
            self._parts.append(self._text.end())

    def members(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "text": "".join(self._parts),
            "logprobs": None if self._logprobs is None else self._logprobs.take(self._entries),
            "finish_reason": self._text.finish_reason,
        }


class _StreamedChoice:
    """A choice that is sent as it comes, with its prompt before it where that is echoed. Implements
    `generation.Receiver`."""

    def __init__(
        self,
        text: ChoiceText,
        logprobs: CompletionLogprobs | None,
        echo: str,
        chunks: CompletionChunks,
        events: EventStream,
        *,
        shows_usage: bool,
    ) -> None:
        self._text = text
        self._logprobs = logprobs
        self._entries: list[Any] = []
        self._waiting = chunks.content(echo) if echo else b""
        self._chunks = chunks
        self._events = events
        self._shows_usage = shows_usage
        self._is_plain = self._logprobs is None and not shows_usage

    async def take(self, part: TextPart) -> bool:
        if self._text.finish_reason:
            return True
        text = self._text.take(part)
        self._entries += part.logprobs or ()
        await self._show(text)
        return not self._text.is_stopped

    def take_at_once(self, part: TextPart) -> bool:
        text = self._text
        if not (self._is_plain and text.is_plain) or part.finish_reason or text.finish_reason or self._waiting:
            return False
        if part.text and not self._events.send_at_once(self._chunks.content(part.text)):
            return False
        text.take(part)
        return True

    async def end(self) -> None:
        if not self._text.finish_reason:
            await self._show(self._text.end())

    async def _show(self, text: str) -> None:
        data, self._waiting = self._waiting, b""
        reason = self._text.finish_reason
        if self._is_plain and not reason:
            data += self._chunks.content(text) if text else b""
        elif text or reason:
            entries, self._entries = self._entries, []
            usage = Usage(self._text.input_tokens, self._text.output_tokens) if self._shows_usage else None
            logprobs = None if self._logprobs is None else self._logprobs.take(entries)
            data += self._chunks.text(text, logprobs=logprobs, finish_reason=reason, usage=usage)
        if data:
            await self._events.send(data)
