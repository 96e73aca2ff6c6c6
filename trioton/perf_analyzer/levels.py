"""The levels of a search, one after the other: linear, or binary between two ends. Pure."""

from __future__ import annotations

from collections.abc import Generator

from trioton.perf_analyzer.options import Options, Range


def search(options: Options) -> Generator[float, bool, None]:
    """The levels to measure; each is answered with whether its latency was within the limit."""
    if options.is_binary_search:
        return _binary(options.levels, is_whole=not options.is_rate)
    return _linear(options.levels)


def _linear(levels: Range) -> Generator[float, bool, None]:
    number = 0
    while True:
        level = levels.start + number * levels.step
        if number and not levels.is_open and level > levels.end * (1 + 1e-9):
            return
        if not (yield level):
            return
        number += 1


def _binary(levels: Range, *, is_whole: bool) -> Generator[float, bool, None]:
    low, high = levels.start, levels.end
    if not (yield low):
        return
    if high <= low or (yield high):
        return
    while high - low > levels.step:
        middle = (low + high) / 2
        middle = float(int(middle)) if is_whole else middle
        if (yield middle):
            low = middle
        else:
            high = middle
