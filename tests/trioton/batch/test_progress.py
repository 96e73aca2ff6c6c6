"""Progress as text, on a terminal and elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from protocol.jobs.source import DataFormat
from trioton.batch.places import OutputPlace
from trioton.batch.progress import ProgressLine, Rate, bar, duration_text, progress_text, report, terminal_line
from trioton.batch.run import Progress
from trioton.batch.state import Identity, State


def progress(done: int = 0, total: int = 0, *, failed: int = 0, retries: int = 0, is_exact: bool = True) -> Progress:
    return Progress(done, failed, 0, retries, total, 0.0, is_exact)


@pytest.mark.parametrize(
    ("shown", "rate", "text"),
    [
        (progress(12_000, 40_000, failed=3), 800.0, "12,000 of 40,000 rows (30%), 3 failed, 800 rows/s, 0:35 left"),
        (progress(5, 100, is_exact=False), 0.5, "5 of about 100 rows (5%), 0.5 rows/s, 3:10 left"),
        (progress(5, retries=2), 0.0, "5 rows, 2 tried again, 0 rows/s"),
        (progress(0, 10), 0.0, "0 of 10 rows (0%), 0 rows/s"),
        (progress(1_234_567, 1_234_567), 12345.0, "1,234,567 of 1,234,567 rows (100%), 12,345 rows/s, 0:00 left"),
    ],
)
def test_text(shown: Progress, rate: float, text: str) -> None:
    assert progress_text(shown, rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (4.2, "0:05"), (61, "1:01"), (3723, "1:02:03"), (273_845, "3 d 04:04:05"), (-3, "0:00")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_the_bar_fills() -> None:
    assert bar(progress(5)) == ""
    assert bar(progress(50, 100)) == "[" + "#" * 12 + "." * 12 + "] "
    assert bar(progress(120, 100)) == "[" + "#" * 24 + "] "


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (120, "[########................] 13,824 of about 40,000 rows (34%), 1 failed, 9,600 rows/s, 0:03 left"),
        (79, "[##......] 13,824 of about 40,000 rows (34%), 1 failed, 9,600 rows/s, 0:03 left"),
        (72, "13,824 of about 40,000 rows (34%), 1 failed, 9,600 rows/s, 0:03 left"),
        (20, "13,824 of about 40,0"),
    ],
)
def test_a_terminal_has_room_for_the_time_that_is_left(columns: int, line: str) -> None:
    assert terminal_line(progress(13_824, 40_000, failed=1, is_exact=False), 9600.0, columns) == line


def test_the_rate_is_that_of_late() -> None:
    rate = Rate()
    assert rate.add(0.0, 0) == 0.0
    for second in range(1, 61):
        rate.add(float(second), 10 * second)
    assert rate.add(61.0, 600 + 1000) == pytest.approx((1600 - 460) / 15)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_drawn_anew() -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    line.show(progress(500, 1000), 0.0)
    line.show(progress(5, 10), 1.0)
    line.clear()
    drawn = stream.getvalue().split("\r")
    assert "\n" not in stream.getvalue()
    assert drawn[1].startswith("[############............] 500 of 1,000 rows")
    assert len(drawn[1]) <= len(drawn[2])
    assert drawn[3].strip() == ""


def test_elsewhere_there_are_lines() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.begin(progress(0), 0.0)
    line.show(progress(1, 2), 1.0)
    line.show(progress(2, 2), 2.0)
    line.clear()
    assert stream.getvalue().splitlines() == [
        "1 of 2 rows (50%), 1 rows/s, 0:01 left",
        "2 of 2 rows (100%), 1 rows/s, 0:00 left",
    ]


def test_report() -> None:
    place = OutputPlace(Path("out.jsonl"), DataFormat.JSON_LINES, is_file=True)
    state = State(Identity("", "", "", "", -1, "", None), done=12_000, failed=3, seconds=35.0)
    assert report(place, state) == "12,000 rows in 0:35 (343 rows/s), 3 failed, see out.jsonl.errors.jsonl"
