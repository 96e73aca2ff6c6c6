"""Descriptions of text models: what crosses to another process, and the same model made of it there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from protocol.text.chat_template import ChatTemplate
from protocol.text.description import TextDescription, describe
from protocol.text.model import PairTensors, TensorNames, TextModel, VectorTensors
from protocol.text.pictures import PictureTokens
from protocol.text.special_tokens import SpecialTokens
from protocol.text.tokenizer import Tokenizer
from protocol.text.tokenizer_file import TokenizerFile
from tests.protocol.http.openai.words import word_tokenizer, word_tokenizer_json

SPECIAL = SpecialTokens({"bos_token": "<s>", "pad_token": "<unk>"}, (3, 4))


def crossed(text: TextModel) -> TextDescription:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(describe(text)), type=TextDescription)


def test_all_facts_cross() -> None:
    text = TextModel(
        "m",
        3,
        context_length=64,
        tool_parser="hermes",
        reasoning_parser="think",
        adapters={"poet": "/p"},
        names=TensorNames(text_input="PROMPT", accumulates=True),
        pairs=PairTensors("ids", "logits", mask="mask", rows=8, takes_texts=True, activation="identity"),
        vectors=VectorTensors("ids", "hidden", pooling="mean", dimensions=(8, 16)),
        pictures=PictureTokens(5, 576),
        loaded_at=1700000000,
        takes_adapters=True,
    )
    made = crossed(text)
    assert made.facts() == text.facts()
    assert made.model(None, None) == text
    assert {name for name, value in text.facts().items() if value == TextModel("", 0).facts()[name]} == set()


def test_a_tokenizer_is_its_file_and_what_it_holds_of_special_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(word_tokenizer_json())
    data = path.read_bytes()
    own = Tokenizer.from_file(TokenizerFile.of(path, data), data).with_special(SPECIAL)
    told = crossed(TextModel("m", 1, tokenizer=own)).tokenizer
    assert told is not None
    assert told.file is not None
    other = Tokenizer.from_file(told.file, told.file.read()).with_special(told.special)
    assert (other.encode("hello world"), other.special, other.file) == (own.encode("hello world"), SPECIAL, own.file)


def test_a_tokenizer_without_a_file_stays_where_it_is() -> None:
    told = crossed(TextModel("m", 1, tokenizer=word_tokenizer())).tokenizer
    assert told is not None
    assert told.file is None


def test_a_chat_template_is_made_again() -> None:
    given = ChatTemplate(
        "{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"}, with_tools="{{ tools | length }}"
    )
    told = crossed(TextModel("m", 1, chat_template=given)).chat_template
    assert told is not None
    for tools in (None, [{"a": 1}, {"b": 2}]):
        assert told.made().render([{"content": "hi"}], tools) == given.render([{"content": "hi"}], tools)
