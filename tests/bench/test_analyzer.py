"""`perf_analyzer`: the flags of a row, and every report that holds no figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.analyzer import arguments, parse_report
from tests.bench.measurement import LoadFailed, Measurement, last_words
from tests.bench.rows import ROWS, Protocol, Row

ROW = Row("add_sub", "grpc", 16)
REPORT = """\
Concurrency,Inferences/Second,Client Send,Server Queue,p50 latency,p90 latency,p95 latency,p99 latency
16,1234.5,7,8,100,200,300,400
"""


def test_a_report_gives_throughput_and_latencies() -> None:
    assert parse_report(REPORT) == Measurement(throughput=1234.5, p50=100, p99=400)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has 0"),
        (REPORT.splitlines()[0], "has 0"),
        (REPORT + "32,1,1,1,1,1,1,1\n", "has 2"),
        (REPORT.replace("Inferences/Second", "Rate"), "'Inferences/Second'"),
        (REPORT.replace(",400", ",NA"), "'p99 latency'.*'NA'"),
        (REPORT.replace(",400", ""), "'p99 latency'.*None"),
        (REPORT.replace("1234.5", "nan"), "'nan'"),
        (REPORT.replace("1234.5", "0"), "no request was answered"),
    ],
)
def test_a_report_without_figures_says_what_is_missing(text: str, says: str) -> None:
    with pytest.raises(LoadFailed, match=says):
        parse_report(text)


@pytest.mark.parametrize(
    ("output", "expected"),
    [("", ""), ("\n \n", ""), ("one\ntwo\n\n", "two"), ("  spaced  ", "spaced")],
)
def test_the_last_words_are_the_last_line_with_text(output: str, expected: str) -> None:
    assert last_words(output) == expected


def test_the_row_and_the_window_become_arguments(tmp_path: Path) -> None:
    given = arguments(ROW, "127.0.0.1:9", 1, tmp_path / "report.csv")
    pairs = dict(zip(given[::2], given[1::2], strict=True))
    assert given[-2] == "-f"
    assert pairs["-m"] == "add_sub"
    assert pairs["-u"] == "127.0.0.1:9"
    assert pairs["-i"] == "grpc"
    assert pairs["--concurrency-range"] == "16"
    assert pairs["-p"] == "1"
    assert pairs["-f"] == str(tmp_path / "report.csv")


@pytest.mark.parametrize(
    ("protocol", "flags"),
    [("stream", ["-i", "grpc", "--streaming", "--async"]), ("shm", ["-i", "grpc", "--shared-memory=system"])],
)
def test_ways_that_need_more_flags(protocol: Protocol, flags: list[str], tmp_path: Path) -> None:
    given = arguments(Row("large", protocol, 8), "127.0.0.1:9", 1, tmp_path / "report.csv")
    assert " ".join(flags) in " ".join(given)


def test_every_row_that_is_not_wrk_s_has_its_flags() -> None:
    for row in ROWS:
        if row.protocol != "json":
            assert row.model in arguments(row, "127.0.0.1:9", 1, Path("report.csv"))
