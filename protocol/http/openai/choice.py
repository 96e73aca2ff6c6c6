"""The text of one choice as it comes: counts, stop strings that the model does not know, and why it ended. Pure."""

from __future__ import annotations

from protocol.errors import Cancelled
from protocol.http.openai.codec.tensors import TextPart
from protocol.text.stop_strings import StopStrings

# Why a text has ended that calls tools; what the model itself says is `stop`.
TOOL_CALLS = "tool_calls"


class ChoiceText:
    """Attributes:
    input_tokens: of the prompt, as the model says; 0 if it does not.
    output_tokens: so far.
    cached_tokens: of the prompt, where the model says so.
    finish_reason: empty until the text has ended.
    ends_with_calls: the text has ended because it calls tools.
    is_stopped: a stop string has ended it, and the model need not go on.
    """

    __slots__ = (
        "_kept",
        "_max_tokens",
        "_stops",
        "cached_tokens",
        "ends_with_calls",
        "finish_reason",
        "input_tokens",
        "is_stopped",
        "output_tokens",
    )

    def __init__(self, stops: StopStrings | None = None, max_tokens: int | None = None, *, keeps: bool = False) -> None:
        """`stops` are those that the model does not look for itself. With `keeps` the text is kept, to be counted."""
        self._stops = stops
        self._max_tokens = max_tokens
        self._kept: list[str] | None = [] if keeps else None
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.finish_reason = ""
        self.is_stopped = False
        self.ends_with_calls = False

    @property
    def is_plain(self) -> bool:
        return self._stops is None

    @property
    def stop_string(self) -> str | None:
        """The one that has ended the text, if that was seen here."""
        return None if self._stops is None else self._stops.matched

    @property
    def kept(self) -> str:
        return "".join(self._kept or ())

    def take(self, part: TextPart) -> str:
        """The text that may be shown."""
        if part.input_tokens:
            self.input_tokens = part.input_tokens
        if part.cached_tokens:
            self.cached_tokens = part.cached_tokens
        self.output_tokens += part.output_tokens
        if self._kept is not None:
            self._kept.append(part.text)
        text = part.text
        if self._stops is not None:
            text = self._stops.push(text)
            if self._stops.matched is not None:
                self.finish_reason = "stop"
                self.is_stopped = True
                return text
        if part.finish_reason:
            self.finish_reason = _finish_reason(part.finish_reason)
            if self._stops is not None:
                text += self._stops.finish()
        return text

    def end(self) -> str:
        """The model has ended, and has not said why: what was held back."""
        is_long = self._max_tokens is not None and self.output_tokens >= self._max_tokens > 0
        self.finish_reason = "length" if is_long else "stop"
        return "" if self._stops is None else self._stops.finish()


def _finish_reason(reason: str) -> str:
    if reason == "abort":
        raise Cancelled("the model has aborted the generation")
    return "length" if reason == "length" else "stop"
