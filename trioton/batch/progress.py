"""Progress of a run as text: how far it is, at which rate, and how long it takes yet. Pure but for `ProgressLine`."""

from __future__ import annotations

import math
import shutil
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TextIO

from trioton.batch.places import OutputPlace
from trioton.batch.run import Progress
from trioton.batch.state import State

# The rate is that of the last so many seconds.
RATE_SECONDS = 15.0
# How often a terminal is drawn, and how often a line is written where there is none.
DRAW_SECONDS = 0.5
LINE_SECONDS = 30.0
# Of a bar, at most; a shorter one than that is none.
_BAR = 24
_LEAST_BAR = 4


@dataclass(slots=True)
class Rate:
    """Rows per second of late."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, done: int) -> float:
        """Take a count of rows; returns the rate."""
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_SECONDS:
            self._seen.popleft()
        began, before = self._seen[0]
        return (done - before) / (now - began) if now > began else 0.0


def progress_text(progress: Progress, rate: float) -> str:
    """`12,000 of 40,000 rows (30%), 3 failed, 812 rows/s, 0:35 left`."""
    about = "" if progress.is_exact else "about "
    of = f" of {about}{progress.total:,}" if progress.total else ""
    share = f" ({_percent(progress)}%)" if progress.total else ""
    parts = [f"{progress.done:,}{of} rows{share}"]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.retries:
        parts.append(f"{progress.retries:,} tried again")
    parts.append(f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.2g} rows/s")
    if rate and progress.total:
        parts.append(f"{duration_text((progress.total - progress.done) / rate)} left")
    return ", ".join(parts)


def bar(progress: Progress, width: int = _BAR) -> str:
    """`[#####...................] `, empty where the end is not known or there is no room."""
    if not progress.total or width < _LEAST_BAR:
        return ""
    full = width * _percent(progress) // 100
    return f"[{'#' * full}{'.' * (width - full)}] "


def terminal_line(progress: Progress, rate: float, columns: int) -> str:
    """A bar and the text, in so many columns: rather less of a bar than no time that is left."""
    text = progress_text(progress, rate)
    return (bar(progress, min(columns - len(text) - len("[] "), _BAR)) + text)[:columns]


def _percent(progress: Progress) -> int:
    return min(100 * progress.done // progress.total, 100)


def duration_text(seconds: float) -> str:
    """`0:05`, `1:02:03`, `3 d 04:05:06`."""
    whole = max(math.ceil(seconds), 0)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def report(output: OutputPlace, state: State) -> str:
    """`12,000 rows in 0:35 (343 rows/s), 3 failed, see out.jsonl.errors.jsonl`."""
    rate = f" ({state.done / state.seconds:,.0f} rows/s)" if state.seconds >= 1 else ""
    failed = f", {state.failed:,} failed, see {output.errors}" if state.failed else ""
    return f"{state.done:,} rows in {duration_text(state.seconds)}{rate}{failed}"


class ProgressLine:
    """Shows progress on stderr: one line that is drawn anew on a terminal, else a line from time to time."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.is_terminal = self._stream.isatty()
        self._rate = Rate()
        self._drawn = 0

    @property
    def seconds(self) -> float:
        """From one to the next."""
        return DRAW_SECONDS if self.is_terminal else LINE_SECONDS

    def begin(self, progress: Progress, now: float) -> None:
        """What the first rate is counted from."""
        self._rate.add(now, progress.done)

    def show(self, progress: Progress, now: float) -> None:
        rate = self._rate.add(now, progress.done)
        if not self.is_terminal:
            print(progress_text(progress, rate), file=self._stream, flush=True)
            return
        line = terminal_line(progress, rate, shutil.get_terminal_size().columns - 1)
        print(f"\r{line.ljust(self._drawn)}", end="", file=self._stream, flush=True)
        self._drawn = len(line)

    def clear(self) -> None:
        """Nothing is drawn then."""
        if self._drawn:
            print(f"\r{' ' * self._drawn}\r", end="", file=self._stream, flush=True)
        self._drawn = 0
