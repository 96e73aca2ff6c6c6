"""Tokenizer of a language model, from the text of its `tokenizer.json`: text to token ids and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec

from protocol.errors import InvalidArgument, text_of
from protocol.text.detokenizer import Detokenizer, PieceDetokenizer, WindowDetokenizer
from protocol.text.extra import missing_package
from protocol.text.pairs import TextTemplate
from protocol.text.special_tokens import SpecialTokens
from protocol.text.token_pieces import token_pieces
from protocol.text.tokenizer_file import TokenizerFile

if TYPE_CHECKING:
    import tokenizers


class _TokenizerFile(msgspec.Struct):
    """The part of a `tokenizer.json` that is of interest here; the rest is large."""

    decoder: dict[str, Any] | None = None


# The library takes up to 500 bytes for each token: so texts are not endless, and long ones take turns.
MAX_TEXT_CHARACTERS = 1 << 22
_ALONE_ABOVE = 1 << 18

# `decode` holds the interpreter's lock, and `decode_batch` does not.
_DECODED_AT_ONCE = 1024


class Tokenizer:
    """Wraps a `tokenizers.Tokenizer`. Its methods are called from any thread; long texts belong into a thread.

    Attributes:
        special: what the model's folder says of special tokens.
        file: what it was read from; None where that was no file.
        vocabulary_size: the number of ids, those of added tokens among them.
    """

    def __init__(self, wrapped: tokenizers.Tokenizer, decoder: Any, special: SpecialTokens | None) -> None:
        """`decoder` is the decoder's JSON in `tokenizer.json`. `from_json` is the way to make one."""
        self.special = SpecialTokens() if special is None else special
        self.file: TokenizerFile | None = None
        self.vocabulary_size: int = wrapped.get_vocab_size(with_added_tokens=True)
        self._wrapped = wrapped
        self._turn = Lock()
        self._pieces = token_pieces(decoder, self._token_of)
        added = wrapped.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    @classmethod
    def from_json(cls, text: str, special: SpecialTokens | None = None) -> Tokenizer:
        """Blocks: a large vocabulary takes a second.

        Raises:
            InvalidArgument: the text is no `tokenizer.json`.
            Unsupported: the package `tokenizers` is not installed.
        """
        try:
            import tokenizers
        except ImportError:
            raise missing_package("tokenizers", "a tokenizer") from None
        try:
            wrapped = tokenizers.Tokenizer.from_str(text)
            decoder = msgspec.json.decode(text, type=_TokenizerFile).decoder
        except Exception as error:
            raise InvalidArgument(f"not a tokenizer.json: {text_of(error)}") from None
        # Some files hold what they were trained with; a prompt would be cut or filled up.
        wrapped.no_truncation()
        wrapped.no_padding()
        return cls(wrapped, decoder, special)

    @classmethod
    def from_file(cls, file: TokenizerFile, data: bytes) -> Tokenizer:
        """That of a file with these bytes. Blocks and raises as `from_json`."""
        try:
            made = cls.from_json(data.decode())
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"not UTF-8: byte {error.start}") from None
        made.file = file
        return made

    def with_special(self, special: SpecialTokens) -> Tokenizer:
        """The same tokenizer with other special tokens."""
        found = copy(self)
        found.special = special
        return found

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.special.eos_token_ids

    @property
    def bos_token(self) -> str | None:
        return self.special.texts.get("bos_token")

    @property
    def pad_token_id(self) -> int:
        """What fills up the shorter ones of several inputs; 0 where nothing says what does."""
        return self.token_id(self.special.texts.get("pad_token", "")) or 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids. Special tokens that the text spells out become those tokens, as chat templates need it.

        A chat template writes the special tokens itself: its prompts are encoded without adding them.

        Raises:
            InvalidArgument: the text is too long, or not one for this tokenizer.
        """
        if len(text) > MAX_TEXT_CHARACTERS:
            raise InvalidArgument(f"expected a text of at most {MAX_TEXT_CHARACTERS} characters, got {len(text)}")
        if len(text) > _ALONE_ABOVE:
            with self._turn:
                return self._encoded(text, add_special_tokens)
        return self._encoded(text, add_special_tokens)

    def _encoded(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            # `encode` holds the interpreter's lock, for seconds with a text of some megabytes; this one does not.
            [made] = self._wrapped.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            ids: list[int] = made.ids
        except Exception as error:
            raise InvalidArgument(f"the tokenizer refuses the text: {text_of(error)}") from None
        return ids

    def template(self, first: str, second: str | None = None) -> TextTemplate:
        """How it frames a text, or joins two. Only where each has tokens the template has a place for it."""
        try:
            # does not hold the interpreter's lock
            [made] = self._wrapped.encode_batch([first if second is None else (first, second)])
        except Exception as error:
            raise InvalidArgument(f"the tokenizer refuses the text: {text_of(error)}") from None
        return TextTemplate.of(made.ids, made.type_ids, made.sequence_ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of all ids. Raises InvalidArgument for an id that no token can have."""
        for token_id in ids:
            if not _is_id(token_id):
                raise InvalidArgument(f"token id {token_id} is out of range: the vocabulary has {self.vocabulary_size}")
        if len(ids) > _DECODED_AT_ONCE:
            return str(self._wrapped.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0])
        return str(self._wrapped.decode(ids, skip_special_tokens=skip_special_tokens))

    def has_token(self, token_id: int) -> bool:
        """Whether there is a token of this id."""
        return self._token_of(token_id) is not None

    def token_id(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary; None where there is no such token."""
        found: int | None = self._wrapped.token_to_id(token)
        return found

    def token_text(self, token_id: int) -> str:
        """The text that the token adds inside of a text; U+FFFD for parts of characters. Empty for an unknown id."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds inside of a text, which may be parts of characters. Empty for an unknown id."""
        if self._pieces is not None:
            return self._pieces.piece(token_id)
        return b"" if self._token_of(token_id) is None else self._decode_all([token_id]).encode()

    def detokenizer(
        self, *, skip_special_tokens: bool = True, keep: Collection[str] = (), prompt: Sequence[int] = ()
    ) -> Detokenizer:
        """A new detokenizer, for one stream of ids.

        Args:
            skip_special_tokens: they add nothing to the text.
            keep: special tokens that are shown all the same: the markers of an output parser
                (`protocol.text.output_parser.marker_tokens`).
            prompt: the ids that the stream goes on from. Many tokenizers drop a blank at the begin of a text; one
                between the prompt and what a model makes of it has to stay.
        """
        skipped = self._special_ids if skip_special_tokens else frozenset()
        if skipped and keep:
            skipped = skipped.difference(map(self.token_id, keep))
        if self._pieces is not None:
            return PieceDetokenizer(self._pieces, skipped, prompt)
        return WindowDetokenizer(self._decode_all, skipped, prompt)

    def _decode_all(self, ids: Sequence[int]) -> str:
        return self.decode([each for each in ids if _is_id(each)], skip_special_tokens=False)

    def _token_of(self, token_id: int) -> str | None:
        if not _is_id(token_id):
            return None
        token: str | None = self._wrapped.id_to_token(token_id)
        return token


def _is_id(token_id: int) -> bool:
    """Whether the library takes it at all."""
    return 0 <= token_id < 1 << 32
