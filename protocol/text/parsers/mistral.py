"""Tool calls as Mistral writes them: `[TOOL_CALLS][{"name": …, "arguments": …}, …]`, or `[TOOL_CALLS]name[ARGS]{…}`."""

from __future__ import annotations

import re
from collections.abc import Callable

from protocol.text.parsers.tool_calls import ToolCallParser
from protocol.text.parsers.writer import mistral_call_id

_BEGIN, _ARGS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MARKERS = (_BEGIN, _ARGS, _CALL_ID)
# Characters of a tool's name, or of a call's id.
_LONGEST_NAME = 256
# The brace begins the arguments where the model, or its detokenizer, leaves the marker out.
_NAME_END = re.compile(r"\[ARGS\]|\[CALL_ID\]|(?=\{)")
_ID_END = re.compile(r"\[ARGS\]|(?=\{)")


class MistralParser(ToolCallParser):
    """Newer models write each call with its name, and may write its id: `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`.

    Where special tokens are not shown, a list at the begin of the answer is one of calls if its first element is. The
    rest of a call that is broken off is content.
    """

    def __init__(self, id_maker: Callable[[], str] = mistral_call_id) -> None:
        super().__init__(id_maker, self._read_start, _BEGIN)
        self._name = ""  # empty in a list
        self._id = ""

    def _begin(self, marker: str) -> None:
        self._state = self._read_form

    def _after_call(self) -> None:
        self._state = self._read_content if self._name else self._read_comma

    def _read_start(self) -> bool:
        """At the begin of the answer."""
        first = self._skip_blanks()
        if not first:
            return self._wait()
        taken = self._take(_BEGIN)
        if taken is None:
            return False
        if taken:
            return self._go(self._read_form)
        if first == "[":
            self._take("[")
            return self._begin_object(is_certain=False)
        return self._give_back()

    def _read_form(self) -> bool:
        """After the marker."""
        self._name = self._id = ""
        if not self._skip_blanks():
            return self._wait()
        return self._begin_object() if self._take("[") else self._go(self._read_name)

    def _read_comma(self) -> bool:
        """After an element of the list."""
        if not self._skip_blanks():
            return self._wait()
        taken = self._take(",", "]")
        if taken == ",":
            return self._begin_object()
        if taken:
            self._opening = ""
        return self._give_back()

    def _read_name(self) -> bool:
        taken = self._take_until(_NAME_END, _LONGEST_NAME)
        if taken is None:
            return False
        self._name = taken[0].strip()
        if not self._name:
            return self._give_back()
        return self._go(self._read_id if taken[1] == _CALL_ID else self._read_first_argument)

    def _read_id(self) -> bool:
        taken = self._take_until(_ID_END, _LONGEST_NAME)
        if taken is None:
            return False
        self._id = taken[0].strip()
        return self._go(self._read_first_argument) if self._id else self._give_back()

    def _read_first_argument(self) -> bool:
        first = self._skip_blanks()
        if not first:
            return self._wait()
        return self._begin_arguments(self._name, self._id) if first == "{" else self._give_back()
