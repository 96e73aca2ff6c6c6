"""Tool calls as Qwen3-Coder writes them, in tags: `<tool_call><function=name><parameter=key>value</parameter>…`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from protocol.text.markers import Markers
from protocol.text.parsers.call_object import MAX_HELD
from protocol.text.parsers.machine import TextMachine
from protocol.text.parsers.parameter_types import ParameterTypes, is_text, json_text
from protocol.text.parsers.writer import DeltaWriter, call_id

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
MARKERS = (_CALL, _CALL_END)
_IN_FUNCTION = Markers(_PARAMETER, _FUNCTION_END, _CALL_END)
_AFTER_VALUE = Markers(_PARAMETER_END, _PARAMETER, _FUNCTION_END)
# Characters of a name of a tool or a parameter.
_LONGEST_NAME = 256
_NAME_END = re.compile(">")


class Qwen3CoderParser(TextMachine):
    """Arguments become JSON: strings as they come, values of other types, by the tool's schema, when they are whole.

    A parameter without a schema is a string. `<tool_call>` may be missing, as may the end tag of a value. What stands
    between parameters is dropped. Beyond `MAX_HELD` characters a value of another type becomes a string.
    """

    def __init__(self, id_maker: Callable[[], str] = call_id, *, types: ParameterTypes | None = None) -> None:
        super().__init__(DeltaWriter(id_maker), self._read_content, _CALL, _FUNCTION)
        self._types = types or {}
        self._function = ""
        self._count = 0  # parameters of the call so far
        self._value_types: frozenset[str] = frozenset()
        self._held: list[str] | None = None  # of a value that is no string
        self._held_size = 0
        self._newline = ""  # at the end of what was read of a value: the last one belongs to the tag

    def _begin(self, marker: str) -> None:
        self._state = self._read_function if marker == _CALL else self._read_function_name

    def _read_function(self) -> bool:
        if not self._skip_blanks():
            return self._wait()
        taken = self._take(_FUNCTION)
        if taken is None:
            return False
        return self._go(self._read_function_name) if taken else self._give_back()

    def _read_function_name(self) -> bool:
        taken = self._take_until(_NAME_END, _LONGEST_NAME)
        if taken is None:
            return False
        self._function = taken[0].strip()
        if not self._function:
            return self._give_back()
        self._opening = ""
        self._count = 0
        self._writer.start(self._function)
        self._writer.arguments("{")
        return self._go(self._read_function_body)

    def _read_function_body(self) -> bool:
        found = self._take_to_marker(_IN_FUNCTION, lambda text: None)
        if found == _PARAMETER:
            return self._go(self._read_parameter_name)
        if found:
            self._writer.arguments("}")
            self._state = self._read_call_end if found == _FUNCTION_END else self._read_content
        return bool(found)

    def _read_call_end(self) -> bool:
        if not self._skip_blanks():
            return self._wait()
        taken = self._take(_CALL_END)
        if taken is None:
            return False
        if taken:
            self._opening = ""
        return self._give_back()

    def _read_parameter_name(self) -> bool:
        taken = self._take_until(_NAME_END, _LONGEST_NAME)
        if taken is None:
            return False
        self._opening = ""
        if not taken[1]:  # no parameter then
            return self._go(self._read_function_body)
        name = taken[0].strip()
        self._value_types = self._types.get((self._function, name), frozenset())
        comma = ", " if self._count else ""
        self._count += 1
        self._writer.arguments(f"{comma}{json.dumps(name, ensure_ascii=False)}: ")
        self._held, self._held_size = [], 0
        if is_text(self._value_types):
            self._stream_value()
        return self._go(self._read_first_newline)

    def _read_first_newline(self) -> bool:
        """The tag ends its line."""
        taken = self._take("\n")
        self._opening = self._newline = ""
        return taken is not None and self._go(self._read_value)

    def _read_value(self) -> bool:
        found = self._take_to_marker(_AFTER_VALUE, self._write_value)
        if not found:
            if self._has_ended and self._held:
                self._writer.arguments("".join(self._held))
            return False
        self._newline = ""
        if self._held is None:
            self._writer.arguments('"')
        else:
            self._writer.arguments(json_text("".join(self._held), self._value_types))
        if found == _PARAMETER:
            return self._go(self._read_parameter_name)
        self._place -= len(found) if found == _FUNCTION_END else 0
        return self._go(self._read_function_body)

    def _write_value(self, text: str) -> None:
        if not text:
            return
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        text = text.removesuffix("\n")
        if self._held is None:
            self._writer.arguments(_in_string(text))
            return
        self._held.append(text)
        self._held_size += len(text)
        if self._held_size > MAX_HELD:
            self._stream_value()

    def _stream_value(self) -> None:
        """The value is a string, whose text is written as it comes."""
        held, self._held = self._held or (), None
        self._writer.arguments('"' + _in_string("".join(held)))


def _in_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
