"""Reasoning between two tags at the begin of an answer: `<think>…</think>`, `[THINK]…[/THINK]`."""

from __future__ import annotations

from protocol.text.markers import Markers
from protocol.text.parsers.machine import TextMachine
from protocol.text.parsers.writer import DeltaWriter, call_id

THINK = ("<think>", "</think>")
MISTRAL_THINK = ("[THINK]", "[/THINK]")


class ReasoningParser(TextMachine):
    """What stands between the tags is reasoning, all after them is content.

    The first tag counts at the begin of the answer, after blanks, which are dropped then. Without the last one all is
    reasoning to the answer's end.
    """

    def __init__(self, tags: tuple[str, str], *, is_open: bool = False) -> None:
        """`is_open`: the prompt has ended with the first tag, so the answer begins inside. The tag may come again."""
        super().__init__(DeltaWriter(call_id), self._read_start, *tags)
        self._tag = tags[0]
        self._end = Markers(tags[1])
        self._is_open = is_open

    def _read_start(self) -> bool:
        if not self._skip_blanks():
            return (self._has_ended or self._has_waited()) and self._begin_reasoning(False)
        taken = self._take(self._tag)
        if taken is None:
            return False
        return self._begin_reasoning(bool(taken))

    def _begin_reasoning(self, has_tag: bool) -> bool:
        if has_tag:
            self._opening = ""
        if not (has_tag or self._is_open):
            return self._give_back()
        self._writer.reasoning(self._opening)
        self._opening = ""
        return self._go(self._read_reasoning)

    def _read_reasoning(self) -> bool:
        return bool(self._take_to_marker(self._end, self._writer.reasoning)) and self._go(self._read_content)

    def _read_content(self) -> bool:
        self._writer.content(self._text[self._place :])
        self._place = len(self._text)
        return False
