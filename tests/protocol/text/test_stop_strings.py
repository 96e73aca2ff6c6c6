"""Stop strings against a naive search over the whole text, wherever that is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument
from protocol.text.stop_strings import MAX_STOP_CHARACTERS, StopStrings
from tests.protocol.text.cutting import CUTS, cut

LETTERS = st.text("abc", max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The match that ends first, of several the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[:end] if include else text[: end - len(stop)], stop


@given(text=LETTERS, stops=STOPS, cuts=CUTS, include=st.booleans())
def test_like_a_search_over_the_whole_text(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    machine = StopStrings(stops, include=include)
    longest = max(map(len, stops), default=0)
    shown = read = ""
    for piece in cut(text, cuts):
        shown += machine.push(piece)
        read += piece
        if machine.matched is None:
            assert len(read) - len(shown) < max(longest, 1)
    shown += machine.finish()
    assert (shown, machine.matched) == naive(text, stops, include)


@given(text=LETTERS, stops=STOPS)
def test_nothing_is_held_that_cannot_become_a_stop_string(text: str, stops: list[str]) -> None:
    machine = StopStrings(stops)
    shown = machine.push(text)
    if machine.matched is None:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_nothing_is_shown_after_the_end() -> None:
    machine = StopStrings(["stop"])
    assert [machine.push("a st"), machine.push("op b"), machine.push("c"), machine.finish()] == ["a ", "", "", ""]
    assert machine.matched == "stop"


def test_included() -> None:
    machine = StopStrings(["stop"], include=True)
    assert [machine.push("a st"), machine.push("op b")] == ["a ", "stop"]


def test_of_two_that_end_together_the_longer_counts() -> None:
    machine = StopStrings(["b", "ab"])
    assert machine.push("xab") == "x"
    assert machine.matched == "ab"


def test_the_one_that_ends_first_counts_though_another_began_before() -> None:
    machine = StopStrings(["abcd", "bc"])
    assert machine.push("xabcd") == "xa"
    assert machine.matched == "bc"


def test_without_stop_strings() -> None:
    machine = StopStrings([])
    assert machine.push("any") == "any"
    assert (machine.finish(), machine.matched) == ("", None)


@pytest.mark.parametrize("stop", ["^", "]", "\\", "-", "^-]", "\n", "👩‍👩‍👧"])
def test_characters_that_mean_something_elsewhere(stop: str) -> None:
    machine = StopStrings([stop])
    assert machine.push(f"before{stop}after") == "before"


def test_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one character"):
        StopStrings(["a", ""])
    with pytest.raises(InvalidArgument, match=f"at most {MAX_STOP_CHARACTERS} characters in all .*, got 5000"):
        StopStrings(["a" * 2500, "b" * 2500])
    StopStrings(["a" * MAX_STOP_CHARACTERS])
