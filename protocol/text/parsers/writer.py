"""Delta writer: collects what an output parser gives, numbers its tool calls, and drops blanks around them."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable

from protocol.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart

_Kind = type[ContentDelta] | type[ReasoningDelta] | type[ToolCallArguments]
# White space that is held back until it is known whether it stands between tool calls.
MAX_BLANKS = 1024


class DeltaWriter:
    """The deltas of one answer. White space alone, beside a tool call, is no content."""

    def __init__(self, id_maker: Callable[[], str]) -> None:
        self._make_id = id_maker
        self._deltas: list[Delta] = []
        # What is being written: pieces of one kind are one delta.
        self._kind: _Kind = ContentDelta
        self._pieces: list[str] = []
        self._index = -1
        # None: there was content since the begin or the last call.
        self._blanks: str | None = ""

    def take(self) -> list[Delta]:
        """What was written since the last time."""
        self._flush()
        deltas, self._deltas = self._deltas, []
        return deltas

    def content(self, text: str) -> None:
        if not text:
            return
        if self._blanks is not None:
            text = self._blanks + text
            if len(text) <= MAX_BLANKS and text.isspace():
                self._blanks = text
                return
            self._blanks = None
        self._write(ContentDelta, text)

    def reasoning(self, text: str) -> None:
        self._write(ReasoningDelta, text)

    def start(self, name: str, call_id: str = "") -> None:
        """A tool call begins."""
        self._flush()
        self._blanks = ""
        self._index += 1
        self._deltas.append(ToolCallStart(self._index, call_id or self._make_id(), name))

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that has begun last."""
        self._write(ToolCallArguments, text)

    def finish(self) -> None:
        """The answer ends: blanks are content after all, if there was no call."""
        if self._blanks and self._index < 0:
            self._write(ContentDelta, self._blanks)
        self._blanks = None

    def _write(self, kind: _Kind, text: str) -> None:
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        if text:
            self._pieces.append(text)

    def _flush(self) -> None:
        if self._pieces:
            text = "".join(self._pieces)
            self._pieces.clear()
            kind = self._kind
            made = ToolCallArguments(self._index, text) if issubclass(kind, ToolCallArguments) else kind(text)
            self._deltas.append(made)


def call_id() -> str:
    """As OpenAI makes them."""
    return f"call_{secrets.token_hex(12)}"


_LETTERS_AND_DIGITS = string.ascii_letters + string.digits


def mistral_call_id() -> str:
    """Nine letters and digits: Mistral's chat templates refuse any other."""
    return "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(9))
