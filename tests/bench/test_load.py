"""One turn: the load generator's report, its arguments, and every way in which a run gives no figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench.load import LoadFailed, LoadGenerator, Measurement, last_words, parse_report
from tests.bench.rows import Protocol, Row

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
    arguments = generator(tmp_path, "").arguments(ROW, "127.0.0.1:9", tmp_path / "report.csv")
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert arguments[-2] == "-f"
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
    arguments = generator(tmp_path, "").arguments(Row("large", protocol, 8), "127.0.0.1:9", tmp_path / "report.csv")
    assert " ".join(flags) in " ".join(arguments)


def generator(folder: Path, body: str, *, grace_seconds: float = 20.0) -> LoadGenerator:
    """A stand-in for perf_analyzer: a script with `body`, which finds the report's path in `report`."""
    program = folder / "perf_analyzer"
    program.write_text(f"#!{sys.executable}\nimport os, sys, time\nreport = sys.argv[-1]\n{body}\n")
    program.chmod(0o755)
    return LoadGenerator(program, {"OF_THE_TOOL": "yes"}, window_ms=1, grace_seconds=grace_seconds)


def test_a_run_returns_what_the_report_holds(tmp_path: Path) -> None:
    load = generator(tmp_path, f"open(report, 'w').write({REPORT!r})")
    assert load.run(ROW, "127.0.0.1:9").throughput == 1234.5


def test_a_run_sees_its_own_environment_and_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy between the load generator and loopback would be measured instead of the server."""
    monkeypatch.setenv("http_proxy", "127.0.0.1:1")
    load = generator(tmp_path, "print(os.environ.get('http_proxy'), os.environ['OF_THE_TOOL']); sys.exit(1)")
    with pytest.raises(LoadFailed, match=r"^None yes$"):
        load.run(ROW, "127.0.0.1:9")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("print('error: unknown model'); sys.exit(1)", "error: unknown model"),
        ("sys.exit(99)", "ended with 99"),
        ("pass", "ended with 0"),
    ],
)
def test_a_run_without_a_report_fails_with_its_last_words(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(LoadFailed, match=says):
        generator(tmp_path, body).run(ROW, "127.0.0.1:9")


def test_a_run_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    load = generator(tmp_path, "time.sleep(600)", grace_seconds=0.2)
    with pytest.raises(LoadFailed, match="no result within"):
        load.run(ROW, "127.0.0.1:9")
