"""Small tokenizers of the usual kinds, trained on this project's own pages. No network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

DOCS = Path(__file__).parent.parent.parent.parent / "docs"
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_end|>"]
# Bytes that are no printable character in these tokenizers' alphabets, and characters that no page has.
OTHER = "Grüße, 模型 और नमस्ते 👩‍👩‍👧‍👦 🇨🇭 é"


def _pages() -> list[str]:
    return [(DOCS / name).read_text() for name in ("glossary.md", "design.md")] + [OTHER]


def _train(wrapped: Any, trainer: Any) -> str:
    wrapped.train_from_iterator(_pages(), trainer)
    return str(wrapped.to_str())


def _byte_level() -> str:
    wrapped = tokenizers.Tokenizer(models.BPE())
    wrapped.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    wrapped.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    text = _train(wrapped, trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL, initial_alphabet=alphabet))
    # An added token with a blank, and one that has characters which stand for bytes.
    again = tokenizers.Tokenizer.from_str(text)
    again.add_tokens(["two words", "Ġliteral"])
    return str(again.to_str())


def _sentence_piece() -> str:
    """As Llama 2 has it: byte fallback, and one blank before the text that is stripped again."""
    wrapped = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    wrapped.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    wrapped.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    form = json.loads(_train(wrapped, trainers.BpeTrainer(vocab_size=1200, special_tokens=tokens, limit_alphabet=70)))
    # Byte tokens are plain ones of the vocabulary.
    form["added_tokens"] = [token for token in form["added_tokens"] if not token["content"].startswith("<0x")]
    return json.dumps(form)


def _metaspace() -> str:
    wrapped = tokenizers.Tokenizer(models.Unigram())
    wrapped.pre_tokenizer = pre_tokenizers.Metaspace()
    wrapped.decoder = decoders.Metaspace()
    return _train(wrapped, trainers.UnigramTrainer(vocab_size=600, special_tokens=SPECIAL, unk_token="<unk>"))


def _word_piece() -> str:
    wrapped = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    wrapped.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wrapped.decoder = decoders.WordPiece()
    return _train(wrapped, trainers.WordPieceTrainer(vocab_size=900, special_tokens=SPECIAL))


def _word_end() -> str:
    """A decoder that treats the last token differently, so that tokens cannot be decoded alone."""
    wrapped = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    wrapped.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wrapped.decoder = decoders.BPEDecoder()
    return _train(wrapped, trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL, end_of_word_suffix="</w>"))


def _no_decoder() -> str:
    wrapped = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    wrapped.pre_tokenizer = pre_tokenizers.Whitespace()
    return _train(wrapped, trainers.WordLevelTrainer(vocab_size=600, special_tokens=SPECIAL))


MAKERS: Mapping[str, Callable[[], str]] = {
    "byte level": _byte_level,
    "sentence piece": _sentence_piece,
    "metaspace": _metaspace,
    "word piece": _word_piece,
    "word end": _word_end,
    "no decoder": _no_decoder,
}


@cache
def tokenizer_json(kind: str) -> str:
    """The text of a `tokenizer.json` of this kind, one of `MAKERS`."""
    return MAKERS[kind]()
