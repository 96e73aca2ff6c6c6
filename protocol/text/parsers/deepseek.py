"""Tool calls as DeepSeek V3, R1 and V3.1 write them, between markers of their own kind of bars and blanks."""

from __future__ import annotations

import re
from collections.abc import Callable

from protocol.text.markers import Markers
from protocol.text.parsers.tool_calls import ToolCallParser
from protocol.text.parsers.writer import call_id

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
MARKERS = (_CALLS, _CALL, _SEPARATOR, _CALL_END, _CALLS_END)
_AFTER_ARGUMENTS = Markers(_CALL, _CALL_END, _CALLS_END)
_FENCE = "```json"
# Characters of the kind of a call, and of a tool's name.
_LONGEST_NAME = 256
_KIND_END = re.compile(re.escape(_SEPARATOR))
_NAME_END = re.compile("\n")


class DeepSeekParser(ToolCallParser):
    """V3 and R1 write the kind of the call, `function`, then its name, and its arguments in a fence of Markdown; V3.1
    its name, then its arguments. After the arguments, text is dropped up to the next marker."""

    def __init__(self, id_maker: Callable[[], str] = call_id) -> None:
        super().__init__(id_maker, self._read_content, _CALLS, _CALL)
        self._name = ""

    def _begin(self, marker: str) -> None:
        self._state = self._read_kind if marker == _CALL else self._read_call

    def _after_call(self) -> None:
        self._state = self._read_end

    def _after_broken_call(self) -> None:
        self._state = self._read_end

    def _read_call(self) -> bool:
        """Before a call, or the end of all."""
        if not self._skip_blanks():
            return self._wait()
        taken = self._take(_CALL, _CALLS_END)
        if taken is None:
            return False
        if taken == _CALL:
            return self._go(self._read_kind)
        if taken:
            self._opening = ""
        return self._give_back()

    def _read_kind(self) -> bool:
        taken = self._take_until(_KIND_END, _LONGEST_NAME)
        if taken is None:
            return False
        self._name = taken[0].strip()
        if not self._name:
            return self._give_back()
        return self._go(self._read_name if self._name == "function" else self._read_first_argument)

    def _read_name(self) -> bool:
        taken = self._take_until(_NAME_END, _LONGEST_NAME)
        if taken is None:
            return False
        self._name = taken[0].strip()
        return self._go(self._read_fence) if self._name else self._give_back()

    def _read_fence(self) -> bool:
        if not self._skip_blanks():
            return self._wait()
        return self._take(_FENCE) is not None and self._go(self._read_first_argument)

    def _read_first_argument(self) -> bool:
        first = self._skip_blanks()
        if not first:
            return self._wait()
        return self._begin_arguments(self._name) if first == "{" else self._give_back()

    def _read_end(self) -> bool:
        found = self._take_to_marker(_AFTER_ARGUMENTS, lambda text: None)
        match found:
            case "":
                return False
            case str() if found == _CALL:
                self._opening = found
                return self._go(self._read_kind)
            case _:
                return self._go(self._read_call if found == _CALL_END else self._read_content)
