"""Output of a converter, as lines for the log."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from backends.engines.conversion.progress import BAR_SECONDS, Progress


def test_bars_are_thinned_out() -> None:
    progress = Progress()
    assert progress.feed(b"Loading\n 1%|\r 2%|\r", 100.0) == ["Loading", "1%|"]
    assert progress.feed(b" 3%|\r", 100.0 + BAR_SECONDS / 2) == []
    assert progress.feed(b" 9%|\rDone", 100.0 + BAR_SECONDS) == ["9%|"]
    assert progress.end() == ["Done"]
    assert list(progress.last) == ["Loading", "Done"]


@given(st.lists(st.integers(0, 40)), st.text(st.sampled_from("ab \n"), max_size=40))
def test_any_cutting_gives_the_same_lines(cuts: list[int], text: str) -> None:
    data = text.encode()
    places = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    progress = Progress()
    lines = [line for start, end in itertools.pairwise(places) for line in progress.feed(data[start:end], now=0.0)]
    assert [*lines, *progress.end()] == [line.strip() for line in text.split("\n") if line.strip()]


def test_an_endless_line_is_cut() -> None:
    progress = Progress()
    for _ in range(100):
        assert progress.feed(b"x" * 1000, 0.0) == []
    [line] = progress.end()
    assert len(line) <= 1000
