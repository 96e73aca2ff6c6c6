"""Token pieces: the bytes that each token adds to a text, read off the decoder of a `tokenizer.json`.

Most decoders treat a token alone, and the first one of a text a little differently: byte-level BPE, SentencePiece's
(Metaspace, or Replace with byte fallback), WordPiece. Their pieces are made once for each token and kept, so a text
costs one look-up a token. For any other decoder there are no pieces (`protocol.text.detokenizer.WindowDetokenizer`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# A decoder's step for one token: its text, and whether it is the first of the text.
_Step = Callable[[str, bool], str]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# WordPiece's clean-up, in its order.
_CLEANED = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


class TokenPieces:
    """The pieces of one tokenizer. Grows to one entry a token of its vocabulary; threads may share it.

    Attributes:
        stripped: how many of `stripped_character` are taken from the begin of the whole text.
        bytes_alone: an invalid byte is replaced alone, not together with others of its character.
    """

    def __init__(self, token_of: Callable[[int], str | None], decoder: _Decoder) -> None:
        self._token_of = token_of
        self._decoder = decoder
        self.stripped = decoder.stripped
        self.stripped_character = decoder.stripped_character
        self.bytes_alone = decoder.has_byte_fallback
        self._pieces: dict[int, bytes] = {}

    def piece(self, token_id: int) -> bytes:
        """What the token adds anywhere but at the begin; nothing for an id without a token."""
        found = self._pieces.get(token_id)
        if found is None:
            found = self._make(token_id, False)
            if self._token_of(token_id) is not None:  # else there would be no bound on what is kept
                self._pieces[token_id] = found
        return found

    def first_piece(self, token_id: int) -> bytes:
        """What the token adds as the first one of a text."""
        return self._make(token_id, True)

    def has(self, token_id: int) -> bool:
        return self._token_of(token_id) is not None

    def _make(self, token_id: int, is_first: bool) -> bytes:
        token = self._token_of(token_id)
        return b"" if token is None else self._decoder.piece(token, is_first)


def token_pieces(decoder: Mapping[str, Any] | None, token_of: Callable[[int], str | None]) -> TokenPieces | None:
    """The pieces of a tokenizer with this decoder, as its JSON has it; None where a token's text depends on others."""
    steps = list(_flattened(decoder))
    known = _Decoder()
    if all(known.add(step) for step in steps):
        return TokenPieces(token_of, known)
    return None


class _Decoder:
    """A decoder as steps that treat a token alone."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._is_byte_level = False
        self._is_fused = False
        self._joins_by_blanks = True
        self.has_byte_fallback = False
        self.stripped = 0
        self.stripped_character = " "

    def add(self, step: Mapping[str, Any]) -> bool:
        """Adds the next step; False if it cannot be done token by token."""
        self._joins_by_blanks = False
        if self._is_byte_level:
            return False
        match step.get("type"):
            case "ByteLevel":
                self._is_byte_level = not self._is_fused
                return self._is_byte_level
            case "Fuse":
                self._is_fused = True
                return True
            case "Strip" if self._is_fused:
                return self._add_strip(step)
            case "ByteFallback" if not self._is_fused:
                self.has_byte_fallback = True
                return True
            case _:
                made = None if self._is_fused or self.has_byte_fallback else _token_step(step)
                if made is not None:
                    self._steps.append(made)
                return made is not None

    def piece(self, token: str, is_first: bool) -> bytes:
        if self._is_byte_level:
            return _byte_level(token)
        for step in self._steps:
            token = step(token, is_first)
        if self.has_byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        if self._joins_by_blanks and not is_first:  # a tokenizer without decoder
            token = f" {token}"
        return token.encode()

    def _add_strip(self, step: Mapping[str, Any]) -> bool:
        if self.stripped or step.get("stop") or len(step["content"]) != 1:
            return False
        self.stripped, self.stripped_character = step["start"], step["content"]
        return True


def _flattened(decoder: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    if decoder is None:
        return
    if decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _flattened(step)
    else:
        yield decoder


def _token_step(step: Mapping[str, Any]) -> _Step | None:
    match step.get("type"):
        case "Replace" if "String" in step["pattern"]:
            return _replace(step["pattern"]["String"], step["content"])
        case "Metaspace":
            return _metaspace(step["replacement"], step.get("prepend_scheme", "always") != "never")
        case "WordPiece":
            return _word_piece(step["prefix"], step["cleanup"])
        case _:
            return None


def _replace(pattern: str, content: str) -> _Step | None:
    return (lambda token, is_first: token.replace(pattern, content)) if pattern else None


def _metaspace(replacement: str, is_prepended: bool) -> _Step:
    return lambda token, is_first: token.replace(replacement, "" if is_first and is_prepended else " ")


def _word_piece(prefix: str, cleans: bool) -> _Step:
    def step(token: str, is_first: bool) -> str:
        if not is_first:
            token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
        return _cleaned(token) if cleans else token

    return step


def _cleaned(token: str) -> str:
    for old, new in _CLEANED:
        token = token.replace(old, new)
    return token


def _byte_characters() -> Mapping[str, int]:
    """The characters that stand for bytes in a byte-level vocabulary: printable ones for themselves, others shifted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    shifted = {chr(0x100 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


_BYTES = _byte_characters()


def _byte_level(token: str) -> bytes:
    """An added token may have other characters; then it stands for itself."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode()
