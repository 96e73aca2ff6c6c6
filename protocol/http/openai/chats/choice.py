"""Choices of a chat: each reads the deltas of one text as it comes, and shows them as its interface does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trio

from protocol.http.openai.choice import TOOL_CALLS, ChoiceText
from protocol.http.openai.codec.logprobs import Entries, TokenBytes, chat_logprobs
from protocol.http.openai.codec.tensors import TextPart
from protocol.text.deltas import ContentDelta, Delta, ToolCallStart
from protocol.text.output_parser import OutputParser

# Characters that a parser is given in one turn of the loop. A text of many calls takes it a microsecond a character.
READ_AT_ONCE = 1 << 10


class ChatAnswers:
    """How the answers of one call are read.

    Attributes:
        ends_with_calls: whether a text that calls tools has ended for that; a named function is called because the
            client wants it, which ends the text as any does.
    """

    def __init__(
        self,
        make_parser: Callable[[], OutputParser | None],
        *,
        top_logprobs: int | None = None,
        token_bytes: TokenBytes = None,
        by_ids: bool = False,
        ends_with_calls: bool = False,
    ) -> None:
        self.make_parser = make_parser
        self.top_logprobs = top_logprobs
        self.token_bytes = token_bytes
        self.by_ids = by_ids
        self.ends_with_calls = ends_with_calls

    def logprobs(self, entries: Entries) -> dict[str, Any] | None:
        if self.top_logprobs is None or not entries:
            return None
        return chat_logprobs(entries, self.top_logprobs, self.token_bytes, by_ids=self.by_ids)


class ChatChoice:
    """Reads the deltas of one choice. Implements `generation.Receiver`."""

    def __init__(self, answers: ChatAnswers, text: ChoiceText) -> None:
        self.answers = answers
        self.text = text
        self.parser = answers.make_parser()
        self.has_calls = False
        self.has_ended = False
        self.entries: list[Any] = []

    @property
    def finish_reason(self) -> str:
        return TOOL_CALLS if self.text.ends_with_calls else self.text.finish_reason

    async def take(self, part: TextPart) -> bool:
        if self.has_ended:
            return True
        text = self.text.take(part)
        if part.logprobs:
            self.entries += part.logprobs
        await self._show(text)
        return not self.text.is_stopped or bool(part.finish_reason)

    async def end(self) -> None:
        if not self.has_ended:
            await self._show(self.text.end())

    async def _show(self, text: str) -> None:
        deltas = await self._read(text)
        if self.text.finish_reason:
            self.has_ended = True
            if self.parser is not None:
                deltas += self._counted(self.parser.finish())
            is_call = self.has_calls and self.answers.ends_with_calls
            self.text.ends_with_calls = is_call and self.text.finish_reason == "stop"
        await self.show(deltas)

    async def _read(self, text: str) -> list[Delta]:
        if not text:
            return []
        if self.parser is None:
            return [ContentDelta(text)]
        deltas = self.parser.push(text[:READ_AT_ONCE])
        for begin in range(READ_AT_ONCE, len(text), READ_AT_ONCE):
            await trio.lowlevel.checkpoint()
            deltas += self.parser.push(text[begin : begin + READ_AT_ONCE])
        return self._counted(deltas)

    def _counted(self, deltas: list[Delta]) -> list[Delta]:
        self.has_calls = self.has_calls or any(isinstance(delta, ToolCallStart) for delta in deltas)
        return deltas

    def take_at_once(self, part: TextPart) -> bool:
        return False

    async def show(self, deltas: Sequence[Delta]) -> None:
        """Those that one response of the model has made, none at times; with the last ones, `has_ended` is true."""
        raise NotImplementedError
