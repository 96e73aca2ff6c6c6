"""Budgets of thinking: how much a text has thought, however it is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.text.deltas import ContentDelta, ReasoningDelta
from protocol.text.output_parser import REASONING_PARSERS, output_parser
from protocol.text.thinking import ThinkingWatch, thinking_marks

THINK = thinking_marks("think")
assert THINK is not None


def over_at(*pieces: str, budget: int = 3, is_open: bool = False) -> int | None:
    """The number of the piece, each of one token, with which the budget is used up."""
    assert THINK is not None
    watch = ThinkingWatch(THINK, budget, is_open=is_open)
    for number, piece in enumerate(pieces, start=1):
        if watch.push(piece, 1):
            assert watch.said == "".join(pieces[:number])
            return number
    return None


@pytest.mark.parametrize(
    ("pieces", "is_open", "number"),
    [
        (("<think>", "a", "b", "c"), False, 3),
        (("\n", "<think>", "a", "b"), False, 3),
        (("<th", "ink>", "a", "b"), False, 3),
        (("a", "b", "c", "d"), True, 3),
        (("<think>", "a", "</think>", "b", "c"), False, None),
        (("a", "b</th", "ink>c", "d"), True, None),
        (("a", "<think>", "b", "c", "d"), False, None),
        (("<thinking>", "b", "c", "d"), False, None),
        (("\n", "\n", "\n", "\n"), False, None),
    ],
)
def test_when_it_is_used_up(pieces: tuple[str, ...], is_open: bool, number: int | None) -> None:
    assert over_at(*pieces, is_open=is_open) == number


def test_a_model_that_goes_on_has_had_it() -> None:
    assert THINK is not None
    watch = ThinkingWatch(THINK, 2)
    assert [watch.push(each, 1) for each in ("<think>", "a", "b", "</think>", "c")] == [False, True, True, False, False]


@given(
    st.sampled_from(["<think>a b </thi nk", " <think>ab</think>c", "abc", "<think"]),
    st.lists(st.integers(0, 20)),
    st.booleans(),
)
def test_any_cutting_gives_the_same(text: str, cuts: list[int], is_open: bool) -> None:
    assert THINK is not None
    whole, cut = (ThinkingWatch(THINK, 1, is_open=is_open) for _ in range(2))
    places = [0, *sorted(min(each, len(text)) for each in cuts), len(text)]
    *_, last = (cut.push(text[begin:end], 1) for begin, end in pairwise(places))
    assert (whole.push(text, 1), whole.said) == (last, cut.said)


@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_the_closing_is_read_as_the_end_of_thoughts(name: str) -> None:
    """By the parser of that name, wherever the thoughts were cut."""
    marks = thinking_marks(name)
    assert marks is not None
    parser = output_parser(reasoning_parser=name)
    begin = f"{marks.begin}<|message|>" if name == "harmony" else marks.begin
    deltas = [*parser.push(f"{begin}hm"), *parser.push(f"{marks.closing}yes"), *parser.finish()]
    thoughts = "".join(each.text for each in deltas if isinstance(each, ReasoningDelta))
    content = "".join(each.text for each in deltas if isinstance(each, ContentDelta))
    assert (thoughts.strip(), content.strip()) == ("hm", "yes")


def test_every_parser_of_reasoning_has_marks() -> None:
    assert [name for name in REASONING_PARSERS if thinking_marks(name) is None] == []
    assert thinking_marks("") is None
