"""Reader of server-sent events, and what of an event counts as a response: those of the generate extension, and
OpenAI's. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

_MOST_EVENT_BYTES = 16 << 20
DONE = b"[DONE]"


class EventReader:
    """Splits a body into the data of its events, whatever the pieces that it comes in."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    @property
    def rest(self) -> bytes:
        """What has come behind the last event."""
        return self._rest.strip()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of the events that end in what has come. Raises ValueError: an event is far too long."""
        text = self._rest + data
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *events, self._rest = text.split(b"\n\n")
        if len(self._rest) > _MOST_EVENT_BYTES:
            raise ValueError("an event never ends")
        for event in events:
            if event.startswith(b"data:") and b"\n" not in event:
                yield event[5:].strip()
            else:
                lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
                if lines:
                    yield b"\n".join(lines)


@dataclass(frozen=True, slots=True)
class Event:
    """What an event means for a measurement.

    Attributes:
        has_content: whether it is a response, and not only a note beside them.
        error: its text, where it tells of one.
        tokens: all tokens of the answer, where the event says how many; else None.
    """

    has_content: bool
    error: str = ""
    tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    text: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_CONTENT = Event(True)
_NOTHING = Event(False)
# Members of a delta that a reader gets to see.
_SHOWN = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")
_read_chunk = msgspec.json.Decoder(_Chunk).decode


def openai_event(data: bytes) -> Event:
    """A chunk of a completion, or a whole one: text of any kind is content."""
    if data == DONE:
        return _NOTHING
    try:
        chunk = _read_chunk(data)
    except msgspec.MsgspecError as error:
        return Event(False, f"an event is no JSON of a completion: {error}")
    if chunk.error is not None:
        return Event(False, error_text(chunk.error))
    tokens = None if chunk.usage is None else chunk.usage.completion_tokens
    has_content = any(_has_text(choice) for choice in chunk.choices)
    if tokens is None:
        return _CONTENT if has_content else _NOTHING
    return Event(has_content, tokens=tokens)


def _has_text(choice: _Choice) -> bool:
    if choice.text:
        return True
    shown = choice.delta or choice.message
    return shown is not None and any(shown.get(name) for name in _SHOWN)


def generate_event(data: bytes) -> Event:
    """A response of the generate extension: each is content, unless it tells of an error."""
    if b'"error"' in data[:256]:
        try:
            value = msgspec.json.decode(data)
        except msgspec.MsgspecError:
            return _CONTENT
        if isinstance(value, dict) and isinstance(value.get("error"), str):
            return Event(False, value["error"])
    return _CONTENT


def error_text(value: Any) -> str:
    """That of an error in any of the usual forms."""
    if isinstance(value, dict):
        value = value.get("message", value.get("error", value))
    return str(value) or "an error without a text"
