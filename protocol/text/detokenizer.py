"""Detokenizers: token ids in, one by one, and out the text that each adds, never a part of a character. Pure.

What is joined equals the tokenizer's `decode` of all ids, with one difference: where a run of byte-fallback tokens
(`<0xE6>`, …) is not UTF-8 as a whole, `decode` replaces all of it, and a stream has shown its whole characters already.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from protocol.text.token_pieces import TokenPieces

# U+FFFD, as UTF-8's decoders put it in the place of what is no character.
REPLACEMENT = "\ufffd"
# Tokens of which a window detokenizer decodes the text at once; one more, and it shows what there is.
MAX_WINDOW = 64
# The end of a prompt that such a detokenizer looks at.
_PROMPT_TOKENS = 8


class Detokenizer(Protocol):
    """The text of one stream of token ids."""

    def push(self, token_id: int) -> str:
        """The text that this token makes certain; empty in the middle of a character, for a skipped token, and for an
        id that is none."""
        ...

    def finish(self) -> str:
        """What is left: U+FFFD for a character that has not become whole."""
        ...


class PieceDetokenizer:
    """A detokenizer that looks up each token's bytes."""

    def __init__(self, pieces: TokenPieces, skipped: Collection[int] = frozenset(), prompt: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._decode = codecs.getincrementaldecoder("utf-8")(_BYTES_ALONE if pieces.bytes_alone else "replace").decode
        self._is_first = all(token_id in skipped for token_id in prompt)
        self._to_strip = pieces.stripped if self._is_first else 0

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        if self._is_first:
            return self._stripped(self._first(token_id))
        text = self._decode(self._pieces.piece(token_id))
        return self._stripped(text) if self._to_strip else text

    def finish(self) -> str:
        return self._stripped(self._decode(b"", True))

    def _first(self, token_id: int) -> str:
        if not self._pieces.has(token_id):
            return ""
        self._is_first = False
        return self._decode(self._pieces.first_piece(token_id))

    def _stripped(self, text: str) -> str:
        """Without what is stripped from the begin of the whole text."""
        while text and self._to_strip:
            if not text.startswith(self._pieces.stripped_character):
                self._to_strip = 0
                break
            text = text[1:]
            self._to_strip -= 1
        return text


class WindowDetokenizer:
    """A detokenizer for decoders in which a token's text depends on its neighbours: decodes the last few tokens again.

    A text that ends in U+FFFD may be in the middle of a character, and is shown when it no longer does, or when
    `MAX_WINDOW` tokens wait for that.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        skipped: Collection[int] = frozenset(),
        prompt: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._skipped = skipped
        self._context = [token_id for token_id in prompt[-_PROMPT_TOKENS:] if token_id not in skipped]
        self._new: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._new.append(token_id)
        before, text = self._texts()
        if (text.endswith(REPLACEMENT) or len(text) <= len(before)) and len(self._new) < MAX_WINDOW:
            return ""
        self._context, self._new = self._new, []
        return text[len(before) :]

    def finish(self) -> str:
        before, text = self._texts()
        self._context, self._new = self._new, []
        return text[len(before) :]

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._context), self._decode(self._context + self._new)


def _replace_bytes_alone(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return REPLACEMENT * (error.end - error.start), error.end


_BYTES_ALONE = "trioton.bytes-alone"
codecs.register_error(_BYTES_ALONE, _replace_bytes_alone)
