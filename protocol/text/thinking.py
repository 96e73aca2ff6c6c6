"""Thinking budget: counts the tokens that a model thinks, as its text comes, and says when it has had them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.text.parsers.reasoning import MISTRAL_THINK, THINK


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """What stands around a model's thoughts; `closing` ends them in its place, and has it answer."""

    begin: str
    end: str
    closing: str


_THINK = ThinkingMarks(*THINK, f"\n{THINK[1]}\n\n")
_HARMONY = ThinkingMarks("<|channel|>analysis", "<|end|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
_MARKS = {
    "deepseek_r1": _THINK,
    "harmony": _HARMONY,
    "mistral": ThinkingMarks(*MISTRAL_THINK, MISTRAL_THINK[1]),
    "qwen3": _THINK,
    "think": _THINK,
}


def thinking_marks(reasoning_parser: str) -> ThinkingMarks | None:
    """By the name of a reasoning parser; None where it reads no thoughts."""
    return _MARKS.get(reasoning_parser)


class ThinkingWatch:
    """One text. Thoughts are what stands at its begin: with `is_open` it begins inside.

    Attributes:
        said: the text so far, as long as the model thinks.
        tokens: of the text so far.
    """

    def __init__(self, marks: ThinkingMarks, budget: int, *, is_open: bool = False) -> None:
        self.tokens = 0
        self._marks = marks
        self._budget = budget
        self._parts: list[str] = []
        self._head: str | None = None if is_open else ""  # what has come, until it is clear whether it thinks
        self._tail = ""  # may be the begin of the end
        self._has_ended = False

    @property
    def said(self) -> str:
        return "".join(self._parts)

    def push(self, text: str, tokens: int) -> bool:
        """The next piece. True where the model still thinks, and has had its budget."""
        self.tokens += tokens
        if self._has_ended:
            return False
        self._parts.append(text)
        if self._head is not None:
            self._head += text
            if not self._begins(self._head.lstrip()):
                return False
            text, self._head = self._head, None
        window = self._tail + text
        if self._marks.end in window:
            self._end()
            return False
        self._tail = window[1 - len(self._marks.end) :]
        return self.tokens >= self._budget

    def _begins(self, head: str) -> bool:
        if head.startswith(self._marks.begin):
            return True
        if not self._marks.begin.startswith(head):
            self._end()
        return False

    def _end(self) -> None:
        self._has_ended = True
        self._parts.clear()
