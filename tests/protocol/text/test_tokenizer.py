"""Tokenizers: text to ids and back, single tokens, and files that are none."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument, Unsupported
from protocol.text.special_tokens import SpecialTokens
from protocol.text.tokenizer import MAX_TEXT_CHARACTERS, Tokenizer
from tests.protocol.text.tokenizers_of_tests import MAKERS, OTHER, tokenizer_json


def turns_during(work: Callable[[], object]) -> int:
    """How often another thread gets its turn while something runs."""
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        work()
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    turns = 0
    while not ended.wait(0.001):
        turns += 1
    thread.join()
    return turns


def test_others_run_while_a_long_text_is_encoded_or_decoded() -> None:
    known = Tokenizer.from_json(tokenizer_json("byte level"))
    text = "hello world " * 100_000
    ids = known.encode(text)
    assert turns_during(lambda: known.encode(text)) > 10
    assert turns_during(lambda: known.decode(ids)) > 10
    assert turns_during(lambda: known.template(text, text)) > 10
    assert known.decode(ids) == text
    assert known.decode(ids[:100]) == known.decode(ids)[: len(known.decode(ids[:100]))]


@given(text=st.text(max_size=30))
def test_byte_level_text_comes_back(text: str) -> None:
    known = Tokenizer.from_json(tokenizer_json("byte level"))
    assert known.decode(known.encode(text), skip_special_tokens=False) == text


def test_special_tokens_in_a_text_are_those_tokens() -> None:
    known = Tokenizer.from_json(tokenizer_json("byte level"))
    assert known.encode("a<|im_end|>") == [*known.encode("a"), known.token_id("<|im_end|>")]


def test_special_tokens_are_added_where_the_file_says_so() -> None:
    import tokenizers
    from tokenizers.processors import TemplateProcessing

    wrapped = tokenizers.Tokenizer.from_str(tokenizer_json("byte level"))
    wrapped.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", wrapped.token_to_id("<s>"))])
    known = Tokenizer.from_json(wrapped.to_str())
    assert known.encode("a") == [known.token_id("<s>"), *known.encode("a", add_special_tokens=False)]


def test_a_text_that_would_fill_the_memory_is_refused() -> None:
    known = Tokenizer.from_json(tokenizer_json("byte level"))
    with pytest.raises(InvalidArgument, match="expected a text of at most 4194304 characters, got 4194305"):
        known.encode("a" * (MAX_TEXT_CHARACTERS + 1))


def test_truncation_and_padding_of_the_file_are_not_for_prompts() -> None:
    import tokenizers

    wrapped = tokenizers.Tokenizer.from_str(tokenizer_json("byte level"))
    wrapped.enable_truncation(2)
    wrapped.enable_padding(length=50)
    known = Tokenizer.from_json(wrapped.to_str())
    assert known.decode(known.encode("a long text, not cut")) == "a long text, not cut"


@pytest.mark.parametrize("kind", MAKERS)
def test_tokens_alone(kind: str) -> None:
    known = Tokenizer.from_json(tokenizer_json(kind))
    assert known.token_bytes(known.vocabulary_size + 1) == b""
    assert known.token_text(2**40) == known.token_text(-1) == ""
    ids = known.encode("the model")
    assert known.token_text(ids[-1]).strip()
    assert known.token_bytes(ids[-1]) == known.token_text(ids[-1]).encode()


def test_bytes_of_half_a_character() -> None:
    known = Tokenizer.from_json(tokenizer_json("byte level"))
    ids = known.encode(OTHER)
    assert b"".join(map(known.token_bytes, ids)) == OTHER.encode()
    half = known.token_id("æ") or 0
    assert (known.token_bytes(half), known.token_text(half)) == (b"\xe6", "\ufffd")


def test_bytes_of_a_byte_token() -> None:
    known = Tokenizer.from_json(tokenizer_json("sentence piece"))
    assert known.token_bytes(known.token_id("<0xE6>") or 0) == b"\xe6"


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_ids_that_no_token_can_have(token_id: int) -> None:
    known = Tokenizer.from_json(tokenizer_json("byte level"))
    with pytest.raises(InvalidArgument, match=f"token id {token_id} is out of range: the vocabulary has"):
        known.decode([1, token_id])


@pytest.mark.parametrize("text", ["", "{}", "[]", "{", '{"model": {"type": "BPE"}}', "null"])
def test_no_tokenizer(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"not a tokenizer\.json"):
        Tokenizer.from_json(text)


def test_unknown_decoder() -> None:
    """The library refuses it."""
    form = json.loads(tokenizer_json("byte level"))
    form["decoder"] = {"type": "Unknown"}
    with pytest.raises(InvalidArgument, match=r"not a tokenizer\.json"):
        Tokenizer.from_json(json.dumps(form))


def test_special_tokens_of_the_folder() -> None:
    known = Tokenizer.from_json(tokenizer_json("byte level"))
    assert (known.bos_token, known.eos_token_ids) == (None, ())
    other = known.with_special(SpecialTokens({"bos_token": "<s>"}, (2, 3)))
    assert (other.bos_token, other.eos_token_ids) == ("<s>", (2, 3))
    assert other.encode("a") == known.encode("a")
    assert known.bos_token is None


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(Unsupported, match=r"needs the package tokenizers, .*: pip install 'trioton\[llm\]'"):
        Tokenizer.from_json("{}")
