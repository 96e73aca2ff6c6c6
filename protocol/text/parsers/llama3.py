"""Tool calls as Llama 3 writes them: `<|python_tag|>{"name": …, "parameters": …}`, or such an object alone."""

from __future__ import annotations

from collections.abc import Callable

from protocol.text.parsers.tool_calls import ToolCallParser
from protocol.text.parsers.writer import call_id

_BEGIN = "<|python_tag|>"
MARKERS = (_BEGIN,)


class Llama3Parser(ToolCallParser):
    """Several calls stand one after the other, with `;` between them. Without the marker an object is a call only if it
    has a name and an object of arguments. The rest of a call that is broken off is content."""

    def __init__(self, id_maker: Callable[[], str] = call_id) -> None:
        super().__init__(id_maker, self._read_start, _BEGIN)

    def _begin(self, marker: str) -> None:
        self._begin_object()

    def _after_call(self) -> None:
        self._state = self._read_separator

    def _read_start(self) -> bool:
        """At the begin of the answer."""
        first = self._skip_blanks()
        if not first:
            return self._wait()
        return self._begin_object(is_certain=False) if first == "{" else self._give_back()

    def _read_separator(self) -> bool:
        """After a call."""
        if not self._skip_blanks():
            return self._wait()
        return self._go(self._read_next) if self._take(";") else self._give_back()

    def _read_next(self) -> bool:
        """After a separator; one that ends the answer is dropped."""
        first = self._skip_blanks()
        if not first:
            return not self._has_ended and self._wait()
        taken = self._take(_BEGIN)
        if taken is None:
            return False
        if taken or first == "{":
            return self._begin_object(is_certain=bool(taken))
        return self._give_back()
