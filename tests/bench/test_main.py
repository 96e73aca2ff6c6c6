"""The options of the benchmark, and the models that it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from repository.pbtxt import parse_pbtxt
from tests.bench.__main__ import _peers, parse, possible_rows
from tests.bench.check import LARGE_ELEMENTS
from tests.bench.load import LoadGenerator
from tests.bench.peers import MODELS, OURS, OURS_IN_PROCESS, THEIRS
from tests.bench.prepare import Tools
from tests.bench.rows import ROWS, Row


def test_a_whole_run_is_five_rounds_of_every_row() -> None:
    options = parse([])
    assert (options.rounds, options.window_ms, options.only, options.write) == (5, 1000, None, False)
    assert options.rows == list(ROWS)


def test_the_rows_are_what_the_page_says() -> None:
    by_way: dict[str, set[int]] = {}
    for row in ROWS:
        by_way.setdefault(f"{row.model}/{row.protocol}", set()).add(row.concurrency)
    assert by_way == {
        "add_sub/http": {1, 4, 16, 64},
        "add_sub/json": {16},
        "add_sub/grpc": {1, 4, 16, 64},
        "add_sub/stream": {16},
        "large/http": {1, 8},
        "large/grpc": {1, 8},
        "large/shm": {1, 8},
    }
    assert len(set(ROWS)) == len(ROWS)


def test_a_default_run_is_bounded() -> None:
    """Three servers, three windows a turn: less than 25 minutes where nothing fails, 4 with --quick."""
    for arguments, minutes in (([], 25), (["--quick"], 4)):
        options = parse(arguments)
        assert len(options.rows) * 3 * options.rounds * 3 * options.window_ms / 60_000 < 0.7 * minutes


def test_quick_is_one_short_round_unless_told() -> None:
    assert (parse(["--quick"]).rounds, parse(["--quick"]).window_ms) == (1, 500)
    assert (parse(["--quick", "--rounds", "2"]).rounds, parse(["--window-ms", "600"]).window_ms) == (2, 600)


def test_servers_are_picked_one_by_one() -> None:
    tools = Tools(Path("server"), Path("backends"), Path("analyzer"), "2.41.0", "1.26.4", {}, {})
    assert [peer.name for peer in _peers(tools, None)] == [OURS, OURS_IN_PROCESS, THEIRS]
    only = parse(["--only", THEIRS, "--only", OURS]).only
    assert [peer.name for peer in _peers(tools, only)] == [OURS, THEIRS]


def test_without_wrk_its_row_is_left_out_and_said_so() -> None:
    rows, left_out = possible_rows(ROWS, LoadGenerator(Path("perf_analyzer"), {}, 1))
    assert set(ROWS) - set(rows) == {Row("add_sub", "json", 16)}
    assert left_out == [
        "add_sub/json/16 was left out: there is no wrk on PATH; on Debian, as root: apt-get install wrk"
    ]
    assert possible_rows(ROWS, LoadGenerator(Path("perf_analyzer"), {}, 1, Path("wrk"))) == (list(ROWS), [])


def test_rows_are_selected_part_by_part() -> None:
    assert parse(["--select", "large/grpc"]).rows == [Row("large", "grpc", 1), Row("large", "grpc", 8)]
    assert parse(["--select", "add_sub/http/1", "--select", "large/http/1"]).rows == [
        Row("add_sub", "http", 1),
        Row("large", "http", 1),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--select", "unknown"], "the rows are add_sub/http/1"),
        (["--select", "add"], "the rows are add_sub/http/1"),
        (["--rounds", "0"], "--rounds"),
        (["--only", "other"], "--only"),
        (["--write", "--quick"], "--write takes a whole run"),
        (["--write", "--only", "triton"], "--write takes a whole run"),
        (["--write", "--select", "large"], "--write takes a whole run"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert says in capsys.readouterr().err


def test_the_models_are_what_the_page_says() -> None:
    """16 FP32 twice with batches up to 64, and 600 kB of FP32 without batching; one instance each."""
    add_sub, large = (
        parse_pbtxt((MODELS / name / "config.pbtxt").read_text(), source=name) for name in ("add_sub", "large")
    )
    assert add_sub.max_batch_size == 64
    assert add_sub.dynamic_batching is not None
    assert [tuple(tensor.dims) for tensor in add_sub.input] == [(16,), (16,)]
    assert large.max_batch_size == 0
    assert [tuple(tensor.dims) for tensor in large.input] == [(LARGE_ELEMENTS,)]
    assert [group.count for config in (add_sub, large) for group in config.instance_group] == [1, 1]
