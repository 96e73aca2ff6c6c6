"""Detokenizers give what `decode` gives for the whole, token by token, and never a part of a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.text.detokenizer import MAX_WINDOW, REPLACEMENT, PieceDetokenizer, WindowDetokenizer
from protocol.text.tokenizer import Tokenizer
from tests.protocol.text.tokenizers_of_tests import MAKERS, OTHER, tokenizer_json

ALONE = [kind for kind in MAKERS if kind != "word end"]
TEXTS = st.text("ab c.,'é模👩\u200d🇨\n\0Ġ▁#<>", max_size=30) | st.sampled_from(
    [
        OTHER,
        "",
        " ",
        "  two words  ",
        "the server's model",
        "it isn't , is it ?",
        "<s>a</s> b",
        "Ġliteral",
        "\U0010ffff",
    ]
)


def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.from_json(tokenizer_json(kind))


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    machine = tokenizer.detokenizer(skip_special_tokens=skip)
    return [*(machine.push(token_id) for token_id in ids), machine.finish()]


@pytest.mark.parametrize("kind", MAKERS)
@given(data=st.data())
def test_text_comes_back_as_decode_gives_it(kind: str, data: st.DataObject) -> None:
    known = tokenizer(kind)
    ids = known.encode(data.draw(TEXTS))
    for skip in (True, False):
        assert "".join(streamed(known, ids, skip=skip)) == known.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", [kind for kind in ALONE if kind != "sentence piece"])
@given(data=st.data())
def test_any_ids_are_decoded_as_by_decode(kind: str, data: st.DataObject) -> None:
    """A random model writes what no tokenizer would: half characters, special tokens in the midst of one."""
    known = tokenizer(kind)
    ids = data.draw(st.lists(st.integers(0, known.vocabulary_size - 1), max_size=12))
    assert "".join(streamed(known, ids)) == known.decode(ids)
    assert "".join(streamed(known, ids, skip=False)) == known.decode(ids, skip_special_tokens=False)


def whole_runs(known: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Ids whose runs of byte tokens are UTF-8 as a whole, or a single invalid byte."""
    byte = {number: known.token_id(f"<0x{number:02X}>") or 0 for number in range(256)}
    text = st.integers(0, known.vocabulary_size - 1).filter(lambda each: each not in byte.values())
    whole = st.text(max_size=3).map(lambda part: [byte[each] for each in part.encode()])
    invalid = st.sampled_from([[0xE6], [0xE6, 0xA8], [0x80], [0xFF], [0xF0, 0x9F, 0x91]])
    run = st.one_of(whole, invalid.map(lambda part: [byte[each] for each in part]))
    return st.lists(st.tuples(run, text.map(lambda each: [each])), max_size=5).map(
        lambda pairs: [each for run, text in pairs for each in (*run, *text)]
    )


@given(data=st.data())
def test_bytes_are_decoded_as_by_decode(data: st.DataObject) -> None:
    known = tokenizer("sentence piece")
    ids = data.draw(whole_runs(known))
    assert "".join(streamed(known, ids, skip=False)) == known.decode(ids, skip_special_tokens=False)


def test_whole_characters_of_a_broken_run_of_bytes_stay() -> None:
    """They are shown before it breaks; `decode` replaces the run."""
    known = tokenizer("sentence piece")
    ids = [known.token_id(f"<0x{byte:02X}>") or 0 for byte in "模".encode() + b"\xe6"]
    assert "".join(streamed(known, ids, skip=False)) == "模" + REPLACEMENT
    assert known.decode(ids, skip_special_tokens=False) == REPLACEMENT * 4


@given(text=st.text("é模👩\u200d🇨🇭👨\U0010ffff", min_size=1, max_size=6))
def test_no_piece_has_a_part_of_a_character(text: str) -> None:
    known = tokenizer("byte level")
    pieces = streamed(known, known.encode(text))
    assert "".join(pieces) == text
    assert REPLACEMENT not in "".join(pieces)


def test_a_character_that_does_not_become_whole_is_replaced_at_the_end() -> None:
    known = tokenizer("byte level")
    ids = [known.token_id(character) or 0 for character in ("a", "æ", "¨")]  # a, E6 A8
    machine = known.detokenizer()
    assert [machine.push(token_id) for token_id in ids] == ["a", "", ""]
    assert machine.finish() == REPLACEMENT
    assert machine.finish() == ""


def test_special_tokens_are_skipped_but_for_those_to_keep() -> None:
    known = tokenizer("byte level")
    ids = known.encode("<s>a<|im_end|>b</s>")
    machine = known.detokenizer(keep=["<|im_end|>"])
    assert "".join(map(machine.push, ids)) == "a<|im_end|>b"
    assert "".join(streamed(known, ids)) == "ab"
    assert "".join(streamed(known, ids, skip=False)) == "<s>a<|im_end|>b</s>"


@pytest.mark.parametrize("kind", MAKERS)
def test_ids_without_a_token_add_nothing(kind: str) -> None:
    known = tokenizer(kind)
    ids = known.encode("the model")
    machine = known.detokenizer()
    strange = [known.vocabulary_size + 5, 2**32 - 1, 2**40, -1]
    pieces = [machine.push(token_id) for token_id in (*strange, *ids, *strange)]
    assert "".join(pieces) + machine.finish() == known.decode(ids)


@pytest.mark.parametrize("kind", MAKERS)
@given(
    words=st.lists(st.sampled_from(["the", "model", "server's", "two", "a"]), min_size=2, max_size=8), data=st.data()
)
def test_what_goes_on_from_a_prompt_keeps_its_blank(kind: str, words: list[str], data: st.DataObject) -> None:
    known = tokenizer(kind)
    ids = known.encode(" ".join(words))
    place = data.draw(st.integers(1, len(ids)))
    machine = known.detokenizer(prompt=ids[:place])
    text = "".join(map(machine.push, ids[place:])) + machine.finish()
    # Where the last token of a text is decoded otherwise, its blank comes with what follows.
    assert known.decode(ids[:place]) + text == known.decode(ids)


def test_a_prompt_that_is_no_text_is_none() -> None:
    """Of the token alone that begins every text."""
    known = tokenizer("sentence piece")
    ids = known.encode("the model")
    machine = known.detokenizer(prompt=[known.token_id("<s>") or 0])
    assert "".join(map(machine.push, ids)) + machine.finish() == "the model"
    machine = known.detokenizer(prompt=[known.token_id("<s>") or 0, *ids])
    assert machine.push(ids[0]).startswith(" ")


def test_what_kinds_of_detokenizers_there_are() -> None:
    for kind in MAKERS:
        expected = PieceDetokenizer if kind in ALONE else WindowDetokenizer
        assert isinstance(tokenizer(kind).detokenizer(), expected), kind


def test_a_window_does_not_wait_for_ever() -> None:
    """A model that writes invalid bytes only."""
    machine = WindowDetokenizer(lambda ids: REPLACEMENT * len(ids))
    pieces = [machine.push(1) for _ in range(3 * MAX_WINDOW)]
    assert [place for place, piece in enumerate(pieces) if piece] == [
        MAX_WINDOW - 1,
        2 * MAX_WINDOW - 1,
        3 * MAX_WINDOW - 1,
    ]
    assert "".join(pieces) + machine.finish() == REPLACEMENT * 3 * MAX_WINDOW
