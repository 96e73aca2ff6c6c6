"""Pairs of texts: joined and cut as the library `tokenizers` does it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument
from protocol.text.pairs import fitting
from protocol.text.tokenizer import Tokenizer

WORDS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", *"abcdefgh"]
TEXTS = st.lists(st.sampled_from("abcdefgh"), max_size=12).map(" ".join)


def library_tokenizer(form: str) -> Any:
    from tokenizers import Tokenizer as Made
    from tokenizers import models, pre_tokenizers, processors

    made = Made(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if form == "bert":
        made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    elif form == "roberta":
        made.post_processor = processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1))
    elif form == "template":
        made.post_processor = processors.TemplateProcessing(
            single="$A", pair="[CLS]:0 $B:1 [SEP]:1 [SEP]:0 $A:0", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
    return made


@pytest.mark.parametrize("form", ["bert", "roberta", "template", "none"])
@given(first=TEXTS, second=TEXTS, length=st.integers(4, 40))
def test_pairs_are_the_librarys(form: str, first: str, second: str, length: int) -> None:
    library = library_tokenizer(form)
    tokenizer = Tokenizer.from_json(library.to_str())
    template = tokenizer.template("a", "b")
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in (first, second)]
    whole = library.encode(first, second)
    assert template.join(*ids) == (whole.ids, whole.type_ids)
    library.enable_truncation(length)
    cut = library.encode(first, second)
    sizes = fitting(len(ids[0]), len(ids[1]), length - template.special_tokens)
    made = template.join(*(each[:size] for each, size in zip(ids, sizes, strict=True)))
    assert made == (cut.ids, cut.type_ids)


@pytest.mark.parametrize("room", [-3, 0, 1])
def test_no_room(room: int) -> None:
    assert sum(fitting(5, 7, room)) == max(room, 0)


def test_a_tokenizer_that_refuses() -> None:
    from tokenizers import Tokenizer as Made
    from tokenizers import models

    with pytest.raises(InvalidArgument, match="the tokenizer refuses the text"):
        Tokenizer.from_json(Made(models.WordLevel({"a": 0}, unk_token="[UNK]")).to_str()).template("b", "a")
