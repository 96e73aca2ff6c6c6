"""The command: flags, requirements, exit codes, and what it writes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trioton.perf.repository import write_models
from tests.trioton.perf.test_measurement import a_slice, steady
from trioton.flags.fields import UsageError
from trioton.perf.arrivals import Bursty, Constant, Listed
from trioton.perf.bounds import bounds
from trioton.perf.command import (
    GENERATOR_LIMITED,
    NOTHING_SUCCEEDED,
    REQUIREMENT_FAILED,
    exit_code,
    failed_requirements,
    model_data,
    perf_job,
    run_perf,
)
from trioton.perf.flags import given_arrivals, given_concurrency, given_levels
from trioton.perf.html import page
from trioton.perf.load import Closed, Goodput, Open
from trioton.perf.measurement import Ends, measured
from trioton.perf.output import Report, to_csv, to_json
from trioton.perf.server_side import ServerFigures
from trioton.perf.table import table
from trioton.perf.target import Wire

SERVER = ServerFigures(
    model="m", succeeded=100, inferences=400, executions=50, queue=0.004, compute_infer=0.003, batch_sizes={8: 50}
)


def some(concurrency: int = 4, **more: Any) -> Any:
    return measured(Closed(concurrency), steady(30), Ends(), server=SERVER, **more)


def report(*measurements: Any, **more: Any) -> Report:
    return Report(facts={"model": "m"}, measurements=measurements, **more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16", (16,)), ("1,4,16", (1, 4, 16)), ("1:64", (1, 2, 4, 8, 16, 32, 64)), ("4:12:4", (4, 8, 12)), ("3:5", (3,))],
)
def test_levels(text: str, expected: tuple[int, ...]) -> None:
    assert given_concurrency(text) == expected


@pytest.mark.parametrize("text", ["", "0", "a", "1:", "8:4", "1:9:0", "-1", "1e9"])
def test_no_levels(text: str) -> None:
    with pytest.raises(ValueError, match="expected numbers above 0"):
        given_levels(text)


def test_no_part_of_a_request_is_in_flight() -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        given_concurrency("1.5")


def test_kinds_of_arrivals(tmp_path: Path) -> None:
    (tmp_path / "gaps").write_text("1000\n3000\n")
    assert given_arrivals("constant") == Constant()
    assert given_arrivals("bursty:2.5") == Bursty(2.5)
    assert given_arrivals(str(tmp_path / "gaps")) == Listed((0.001, 0.003))
    for text in ("bursty:x", "sometimes", "bursty:0"):
        with pytest.raises(ValueError, match="expected"):
            given_arrivals(text)


def test_words_become_a_job(tmp_path: Path) -> None:
    live = perf_job(["10.0.0.1:9000", "--model=m", "--protocol=grpc", "--goodput=ttft:300ms,itl:50ms"], {})
    assert (live.address, live.wire, live.repository) == ("10.0.0.1:9000", Wire.GRPC, None)
    assert live.flags.goodput == Goodput(first=0.3, gap=0.05)
    assert perf_job(["--model=m"], {}).address == "localhost:8000"
    assert perf_job(["--model=m", "--protocol=stream"], {}).address == "localhost:8001"
    here = perf_job([str(tmp_path), "--model=m", "--in-process"], {})
    assert (here.wire, here.repository) == (Wire.IN_PROCESS, tmp_path)
    assert perf_job(["--model=m"], {"TRIOTON_CONCURRENCY": "4"}).flags.concurrency == (4,)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "--model is required"),
        (["a:1", "b:2", "--model=m"], "takes one address or repository"),
        (["--model=m", "--in-process"], "takes a repository"),
        (["--model=m", "--find-rate"], "needs a bound"),
        (["--model=m", "--latency=p99:1ms"], "needs a bound"),
        (["--model=m", "--rate=1", "--concurrency=1"], "give one of"),
        (["--model=m", "--server-flag=--x"], "--server-flag is for"),
        (["--model=m", "--find-rate", "--latency=p99:1s", "--requests=5"], "--requests is for"),
        (["no-folder", "--model=m"], "'no-folder' is neither the folder of a repository nor the <host>:<port>"),
        (["no/folder:1", "--model=m"], "'no/folder:1' is neither"),
        (["--model=m", "--html=/no/folder/a.html"], "--html: expected a file in a folder that is there"),
        (["--model=m", "--csv=/"], "--csv: expected a file"),
        (["--model=m", "--require=speed:3"], "rate:500 or errors:0.01, got 'speed:3'"),
    ],
)
def test_flags_that_contradict_each_other(words: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        perf_job(words, {})


def test_flags_of_data_reach_it() -> None:
    words = ["--model=m", "--batch=4", "--cancel-share=0.1", "--cancel-after=5ms", "--priorities=1:0.25,2:0.75"]
    flags = perf_job([*words, "--shared-memory", "--sequences=3", "--parameter=a=1", "--parameter=b=true"], {}).flags
    data = model_data(flags, Wire.HTTP)
    assert (data.batch, data.mixture.cancel_share, data.mixture.cancel_after) == (4, 0.1, 0.005)
    assert [(each.value, each.share) for each in data.mixture.priorities] == [(1, 0.25), (2, 0.75)]
    assert data.memory is not None
    assert (data.sequences.active, data.is_sequential) == (3, True)
    assert data.parameters == {"a": 1, "b": True}


def test_one_load_has_to_keep_all_that_is_required() -> None:
    slow = measured(Closed(64), [a_slice([0.5] * 300) for _ in range(30)], Ends())
    quick = measured(Closed(1), [a_slice([0.005] * 20) for _ in range(30)], Ends())
    required = bounds("p99:20ms,rate:1000")
    assert failed_requirements([slow, quick], required) == ["p99:20ms"]
    assert failed_requirements([quick], required) == ["rate:1000"]
    assert failed_requirements([slow, quick, some()], required) == []
    assert failed_requirements([], required) == ["p99:20ms", "rate:1000"]


def test_exit_codes() -> None:
    failed = measured(Closed(1), [a_slice([], failed=5)], Ends())
    assert exit_code(report(some())) == 0
    assert exit_code(report(failed)) == NOTHING_SUCCEEDED
    assert exit_code(report(some(), failed_requirements=["p99:1ms"])) == REQUIREMENT_FAILED
    assert exit_code(report(some(), mark="greatest rate that keeps p99:1ms")) == REQUIREMENT_FAILED
    limited = some(limits=("late",))
    assert exit_code(report(limited, failed_requirements=["x"], is_generator_limited=True)) == GENERATOR_LIMITED


def test_json_is_strict_and_whole() -> None:
    first = some()
    value = json.loads(json.dumps(to_json(report(first, some(8), marked=first, mark="knee")), allow_nan=False))
    assert (value["marked"], value["mark"]) == (0, "knee")
    found = value["measurements"][0]
    assert found["load"] == {"concurrency": 4}
    assert found["rate"]["value"] == pytest.approx(2000)
    assert found["latency"]["p99"]["value"] == pytest.approx(0.011, rel=0.01)
    assert found["server"]["mean_batch"] == 8
    assert found["histogram"]["count"] == 6000


def test_csv_has_a_row_for_each_load() -> None:
    closed, opened = some(), measured(Open(50.0), steady(30), Ends())
    rows = list(csv.DictReader(io.StringIO(to_csv([closed, opened]))))
    assert [row["concurrency"] for row in rows] == ["4", ""]
    assert [row["offered_rate"] for row in rows] == ["", "50.0"]
    assert float(rows[0]["p95"]) == pytest.approx(0.0109, rel=0.01)
    assert rows[0]["p99.99"] == ""
    assert rows[1]["server_queue"] == ""


def test_the_table_marks_and_warns() -> None:
    marked, limited = some(), some(8, limits=("late",))
    lines = table([marked, limited], marked=marked).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("<")
    assert lines[2].endswith("generator!")
    assert "p99.99" not in lines[0]


def test_the_page_holds_what_was_found() -> None:
    first = some()
    text = page(report(first, some(8, limits=("the sender was late",)), marked=first, mark="knee"))
    assert "Latency against rate" in text
    assert "Percentiles of the latency" in text
    assert "Where the time goes" in text
    assert "the sender was late" in text


@pytest.mark.e2e
@pytest.mark.parametrize("more", [[], ["--protocol=grpc", "--senders=2"], ["--in-process"]], ids=str)
def test_a_model_of_a_repository_is_measured(
    tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_models(tmp_path / "models")
    files = [f"--csv={tmp_path / 'a.csv'}", f"--html={tmp_path / 'a.html'}", "--json"]
    short = [
        "--concurrency=2",
        "--secs=0.5",
        "--warmup-secs=0.2",
        "--server-flag=--backend-config=python,allow-in-process=true",
    ]
    code = run_perf([str(tmp_path / "models"), "--model=add", *short, *files, *more], {})
    value = json.loads(capsys.readouterr().out)
    assert code in (0, GENERATOR_LIMITED)
    (found,) = value["measurements"]
    assert found["errors"] == {}
    assert found["server"]["succeeded"] > 10
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 2
    assert "</html>" in (tmp_path / "a.html").read_text()


@pytest.mark.e2e
def test_a_server_that_does_not_start_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_models(tmp_path / "models")
    assert run_perf([str(tmp_path / "models"), "--model=add", "--server-flag=--no-such-flag"], {}) == 1
    assert "no-such-flag" in capsys.readouterr().err


def test_there_is_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_perf(["127.0.0.1:1", "--model=add"], {}) == 1
    assert "127.0.0.1:1 cannot be reached: Connection refused\n" in capsys.readouterr().err
