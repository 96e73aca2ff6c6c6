"""Token pieces: for every decoder that has them, what the library's own decoder makes of any tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders

from protocol.text.detokenizer import PieceDetokenizer, WindowDetokenizer
from protocol.text.tokenizer import Tokenizer

TOKENS = [
    "a",
    "▁a",
    "▁",
    "▁▁b",
    " ",
    " c",
    "æ",
    "Ġx",
    "Ċ",
    "##s",
    "##",
    ".",
    "n't",
    " ' ",
    "do not",
    "é",
    "模",
    "<s>",
    "d</w>",
]
BYTES = ["<0xE6>", "<0xA8>", "<0xA1>", "<0x20>", "<0x61>", "<0xff>"]

ALONE = {
    "none": None,
    "byte level": decoders.ByteLevel(),
    "metaspace": decoders.Metaspace(),
    "metaspace, never prepended": decoders.Metaspace(prepend_scheme="never"),
    "metaspace, first only": decoders.Metaspace("_", prepend_scheme="first"),
    "word piece": decoders.WordPiece(),
    "word piece, not cleaned": decoders.WordPiece("_", cleanup=False),
    "replace": decoders.Replace("▁", " "),
    "replace twice": decoders.Sequence([decoders.Replace("▁", " "), decoders.Replace(" ", "--")]),
    "gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "llama 2": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "three stripped": decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 3, 0)]),
    "in a sequence": decoders.Sequence([decoders.Sequence([decoders.ByteLevel()])]),
    "fused byte level": decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]),
}
TOGETHER = {
    "word ends": decoders.BPEDecoder(),
    "doubled ones": decoders.CTC(),
    "a pattern": decoders.Replace(Regex("▁+"), " "),
    "stripped at the end": decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    "stripped by token": decoders.Strip(" ", 1, 0),
    "changed after bytes": decoders.Sequence([decoders.ByteFallback(), decoders.Replace("a", "b")]),
}


def tokenizer(decoder: Any) -> Tokenizer:
    vocabulary = {token: place for place, token in enumerate([*TOKENS, *BYTES])}
    wrapped = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a"))
    if decoder is not None:
        wrapped.decoder = decoder
    return Tokenizer.from_json(wrapped.to_str())


@pytest.mark.parametrize("name", ALONE)
@given(data=st.data())
def test_like_the_library(name: str, data: st.DataObject) -> None:
    known = tokenizer(ALONE[name])
    machine = known.detokenizer()
    assert isinstance(machine, PieceDetokenizer) is (name != "fused byte level")
    # Of bytes, only such runs as are no text and a character: see `test_detokenizer`.
    parts = st.sampled_from([*([token] for token in TOKENS), BYTES[:3], BYTES[3:5]])
    drawn = data.draw(st.lists(parts, max_size=8))
    ids = [known.token_id(token) or 0 for part in drawn for token in part]
    assert "".join(map(machine.push, ids)) + machine.finish() == known.decode(ids)


@pytest.mark.parametrize("name", TOGETHER)
def test_what_cannot_be_told_token_by_token(name: str) -> None:
    assert isinstance(tokenizer(TOGETHER[name]).detokenizer(), WindowDetokenizer)


def test_a_decoder_in_the_file_that_is_null() -> None:
    form = json.loads(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).to_str())
    assert form["decoder"] is None
    assert Tokenizer.from_json(json.dumps(form)).token_bytes(0) == b" a"
