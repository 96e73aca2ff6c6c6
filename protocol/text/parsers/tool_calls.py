"""Base of the tool-call parsers: the states that read a call, or its arguments, as JSON."""

from __future__ import annotations

from collections.abc import Callable

from protocol.text.json_scanner import JsonValue
from protocol.text.parsers.call_object import CallObject
from protocol.text.parsers.machine import TextMachine
from protocol.text.parsers.writer import DeltaWriter


class ToolCallParser(TextMachine):
    """A call that the text ends in stays with the arguments so far, if its name and their begin have come; else its
    text is content, as is all that turns out to be no call."""

    def __init__(self, id_maker: Callable[[], str], begin: Callable[[], bool], *markers: str) -> None:
        super().__init__(DeltaWriter(id_maker), begin, *markers)
        self._object = CallObject(self._writer, is_certain=True)
        self._value = JsonValue()

    def _after_call(self) -> None:
        """A call is whole: sets the next state."""
        self._state = self._read_content

    def _after_broken_call(self) -> None:
        """A call that has begun does not go on as JSON: sets the next state."""
        self._state = self._read_content

    def _begin_object(self, *, is_certain: bool = True) -> bool:
        """The next is a call as an object."""
        self._object = CallObject(self._writer, is_certain=is_certain)
        return self._go(self._read_object)

    def _read_object(self) -> bool:
        self._place = self._object.feed(self._text, self._place)
        if not self._object.is_started:
            if self._object.is_failed or self._has_ended:
                self._opening += self._object.held
                return self._give_back()
            return False
        return self._end_call(self._object.is_done, self._object.is_failed)

    def _begin_arguments(self, name: str, call_id: str = "") -> bool:
        """The next are the arguments alone of a call with this name."""
        self._writer.start(name, call_id)
        self._value = JsonValue()
        return self._go(self._read_arguments)

    def _read_arguments(self) -> bool:
        end = self._value.feed(self._text, self._place, len(self._text))
        self._writer.arguments(self._text[self._place : end])
        self._place = end
        return self._end_call(self._value.is_done, self._value.is_broken)

    def _end_call(self, is_whole: bool, is_broken: bool) -> bool:
        self._opening = ""
        if is_whole:
            self._after_call()
        elif is_broken:
            self._after_broken_call()
        return is_whole or is_broken
