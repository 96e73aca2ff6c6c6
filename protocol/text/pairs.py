"""Texts and pairs of texts as encoders take them: token ids as one list, special tokens around and between. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

# What stands at a place of a pair.
_SPECIAL, _FIRST, _SECOND = None, 0, 1


@dataclass(frozen=True, slots=True)
class _Part:
    """A special token, or all tokens of the first or second text; and the type that they have."""

    text: int | None
    token: int
    token_type: int


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """How a tokenizer frames a text, as in `[CLS] first [SEP]`, or joins two, as in `[CLS] first [SEP] second [SEP]`.
    `Tokenizer.template` makes it."""

    parts: tuple[_Part, ...]

    @classmethod
    def of(cls, ids: Sequence[int], types: Sequence[int], texts: Sequence[int | None]) -> TextTemplate:
        """From what a tokenizer made of a text or pair: `texts` has for each token 0, 1, or None for a special one."""
        parts: list[_Part] = []
        for text, group in groupby(zip(ids, types, texts, strict=True), lambda token: token[2]):
            tokens = list(group)
            if text is _SPECIAL:
                parts += [_Part(_SPECIAL, token, token_type) for token, token_type, _ in tokens]
            else:
                parts.append(_Part(text, 0, tokens[0][1]))
        return cls(tuple(parts))

    @property
    def special_tokens(self) -> int:
        """How many stand around the texts."""
        return sum(part.text is _SPECIAL for part in self.parts)

    def join(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ids of a text or pair, and their types."""
        ids: list[int] = []
        types: list[int] = []
        for part in self.parts:
            own = (part.token,) if part.text is _SPECIAL else first if part.text == _FIRST else second
            ids += own
            types += [part.token_type] * len(own)
        return ids, types


def fitting(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts stay where both may have `room`: the longer one is cut, down to half, then both."""
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    longer = max(shorter, room - shorter) if shorter <= room else shorter
    if shorter + longer > room:
        shorter = max(room, 0) // 2
        longer = max(room, 0) - shorter
    return (longer, shorter) if first > second else (shorter, longer)
