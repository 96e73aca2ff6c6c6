"""Tool calls as Hermes and Qwen models write them: `<tool_call>{"name": …, "arguments": …}</tool_call>`."""

from __future__ import annotations

from collections.abc import Callable

from protocol.text.markers import Markers
from protocol.text.parsers.tool_calls import ToolCallParser
from protocol.text.parsers.writer import call_id

_BEGIN, _END = "<tool_call>", "</tool_call>"
_BOTH = Markers(_BEGIN, _END)
MARKERS = (_BEGIN, _END)


class HermesParser(ToolCallParser):
    """The end marker may be missing. After a call that is broken off, text is dropped up to the next marker."""

    def __init__(self, id_maker: Callable[[], str] = call_id) -> None:
        super().__init__(id_maker, self._read_content, _BEGIN)

    def _begin(self, marker: str) -> None:
        self._begin_object()

    def _after_call(self) -> None:
        self._state = self._read_end

    def _after_broken_call(self) -> None:
        self._state = self._skip_to_marker

    def _read_end(self) -> bool:
        if not self._skip_blanks():
            return self._wait()
        taken = self._take(_END)
        if taken is None:
            return False
        if taken:
            self._opening = ""
        return self._give_back()

    def _skip_to_marker(self) -> bool:
        found = self._take_to_marker(_BOTH, lambda text: None)
        if found == _BEGIN:
            self._opening = found
            return self._begin_object()
        return bool(found) and self._go(self._read_content)
