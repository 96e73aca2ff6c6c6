"""Harmony, the format of all that gpt-oss writes: messages on channels, `<|channel|>analysis<|message|>…<|end|>`."""

from __future__ import annotations

import re
from collections.abc import Callable

from protocol.text.markers import Markers
from protocol.text.parsers.machine import TextMachine
from protocol.text.parsers.writer import DeltaWriter, call_id

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS)
_AFTER_TEXT = Markers(_START, _CHANNEL, *_ENDS)
# Characters of a message's header.
_LONGEST_HEADER = 1024
_HEADER_END = re.compile(re.escape(_MESSAGE))
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."


class HarmonyParser(TextMachine):
    """`analysis` is reasoning, as is what goes to the model's built-in tools; `final` and `commentary` are content;
    what goes to a tool, `to=functions.name`, is a call whose message is its arguments. The markers are dropped,
    and with them the header of a message that the text ends in."""

    def __init__(self, id_maker: Callable[[], str] = call_id, *, has_tools: bool = True) -> None:
        """Without `has_tools` what goes to a tool is content."""
        super().__init__(DeltaWriter(id_maker), self._read_content, _START, _CHANNEL, _MESSAGE, *_ENDS)
        self._has_tools = has_tools
        self._write = self._writer.content
        self._is_empty_call = False

    def _begin(self, marker: str) -> None:
        if marker in _ENDS:
            self._opening = ""
        elif marker == _MESSAGE:
            self._begin_message("")
        else:
            self._state = self._read_header

    def _read_header(self) -> bool:
        taken = self._take_until(_HEADER_END, _LONGEST_HEADER)
        if taken is None or (self._has_ended and not taken[1]):
            return False
        if not taken[1]:
            return self._give_back()
        self._begin_message(self._opening)
        return True

    def _begin_message(self, header: str) -> None:
        self._opening = ""
        channel = _CHANNEL_NAME.search(header)
        recipient = _RECIPIENT.search(header)
        self._state = self._read_text
        if recipient is not None and recipient[1].startswith(_FUNCTIONS) and self._has_tools:
            self._writer.start(recipient[1].removeprefix(_FUNCTIONS))
            self._is_empty_call = True
            self._write = self._write_arguments
        elif (channel is not None and channel[1] == "analysis") or _is_built_in(recipient):
            self._write = self._writer.reasoning
        else:
            self._write = self._writer.content

    def _write_arguments(self, text: str) -> None:
        self._is_empty_call = self._is_empty_call and not text.strip()
        self._writer.arguments(text)

    def _read_text(self) -> bool:
        found = self._take_to_marker(_AFTER_TEXT, self._write)
        if self._is_empty_call and (found or self._has_ended):  # engines keep the last marker to themselves
            self._writer.arguments("{}")
        self._is_empty_call = self._is_empty_call and not found
        if found in (_START, _CHANNEL):
            self._opening = found
            return self._go(self._read_header)
        return bool(found) and self._go(self._read_content)


def _is_built_in(recipient: re.Match[str] | None) -> bool:
    return recipient is not None and not recipient[1].startswith(_FUNCTIONS)
