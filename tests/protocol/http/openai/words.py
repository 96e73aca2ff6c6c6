"""A tokenizer of whole words."""

from __future__ import annotations

from protocol.text.tokenizer import Tokenizer


def word_tokenizer() -> Tokenizer:
    return Tokenizer.from_json(word_tokenizer_json())


def word_tokenizer_json() -> str:
    from tokenizers import Tokenizer as Made
    from tokenizers import decoders, models, pre_tokenizers

    words = ["<unk>", "hello", "\u2581hello", "world", "\u2581world"]
    made = Made(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Metaspace(prepend_scheme="never")
    text: str = made.to_str()
    return text
