"""From options to target, data and load."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from trioton.perf.caller import DataError, ModelDescription
from trioton.perf.data.payloads import Form
from trioton.perf.load import Closed, Open
from trioton.perf.target import Wire
from trioton.perf_analyzer.options import OptionError, Options, Range, ServiceKind
from trioton.perf_analyzer.wiring import data_of, gaps_of, level_of_gaps, load_of, metrics_target, target_of

CONFIG = {"input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [1]}], "max_batch_size": 4}
MODEL = ModelDescription("m", config=CONFIG)


def options(**more: Any) -> Options:
    return Options(model="m", **more)


@pytest.mark.parametrize(
    ("given", "address", "is_tls"),
    [
        ({}, "localhost:8000", False),
        ({"is_grpc": True}, "localhost:8001", False),
        ({"address": "host:9"}, "host:9", False),
        ({"address": "http://host:9"}, "host:9", False),
        ({"address": "https://host"}, "host:443", True),
        ({"address": "[::1]:9"}, "[::1]:9", False),
        ({"address": "host:9", "is_grpc": True, "uses_tls": True}, "host:9", True),
    ],
)
def test_addresses(given: dict[str, Any], address: str, is_tls: bool) -> None:
    target = target_of(options(**given))
    assert (target.address, target.tls) == (address, is_tls)


@pytest.mark.parametrize("address", ["ftp://host:1", "host:1/path"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(OptionError, match="-u takes"):
        target_of(options(address=address))


@pytest.mark.parametrize(
    ("given", "wire", "path"),
    [
        ({}, Wire.HTTP, ""),
        ({"is_grpc": True}, Wire.GRPC, ""),
        ({"is_grpc": True, "is_streaming": True}, Wire.STREAM, ""),
        ({"kind": ServiceKind.OPENAI, "endpoint": "v1/chat/completions"}, Wire.OPENAI, "/v1/chat/completions"),
        ({"kind": ServiceKind.OPENAI, "endpoint": "x", "address": "http://h:1/base/"}, Wire.OPENAI, "/base/x"),
    ],
)
def test_wires(given: dict[str, Any], wire: Wire, path: str) -> None:
    target = target_of(options(**given))
    assert (target.wire, target.path) == (wire, path)


@pytest.mark.parametrize(
    ("given", "connections"),
    [
        ({"concurrency": Range(1, 64, 1)}, 2),
        ({"concurrency": Range(4, 1, 1), "is_streaming": True}, 4),
        ({"concurrency": Range(400, 1, 1), "is_streaming": True}, 16),
        ({"rates": Range(400, 1, 1)}, 1),
    ],
)
def test_connections_of_grpc(given: dict[str, Any], connections: int) -> None:
    assert target_of(options(is_grpc=True, **given)).connections == connections


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "http://localhost:8002/metrics"),
        ({"address": "host:9"}, "http://host:8002/metrics"),
        ({"metrics_url": "host:1/metrics"}, "http://host:1/metrics"),
        ({"metrics_url": "https://host/metrics"}, "https://host/metrics"),
    ],
)
def test_the_place_of_metrics(given: dict[str, Any], url: str) -> None:
    assert metrics_target(options(**given)).metrics_url == url
    assert target_of(options(**given)).metrics_url == "none"


def test_loads() -> None:
    assert load_of(options(), 4) == Closed(4)
    constant = load_of(options(rates=Range(10, 1, 1)), 10)
    assert isinstance(constant, Open)
    assert constant.rate == 10
    assert list(itertools.islice(constant.arrivals.gaps(10, 0), 3)) == [0.1] * 3
    poisson = load_of(options(rates=Range(10, 1, 1), is_poisson=True), 10)
    assert isinstance(poisson, Open)
    assert len(set(itertools.islice(poisson.arrivals.gaps(10, 0), 9))) == 9


def test_intervals_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gaps"
    path.write_text("2000\n3000\n")
    given = options(intervals=path)
    gaps = gaps_of(given, MODEL)
    assert level_of_gaps(gaps) == pytest.approx(400)
    load = load_of(given, 400, gaps)
    assert isinstance(load, Open)
    assert list(itertools.islice(load.arrivals.gaps(0, 0), 3)) == [0.002, 0.003, 0.002]  # for ever


def test_a_file_without_intervals(tmp_path: Path) -> None:
    path = tmp_path / "gaps"
    path.write_text("fast\n")
    with pytest.raises(OptionError, match="--request-intervals"):
        gaps_of(options(intervals=path), MODEL)


def scheduled(folder: Path, *times: float) -> Options:
    path = folder / "data.json"
    path.write_text(json.dumps({"data": [{"A": [1], "timestamp": time} for time in times]}))
    return options(is_scheduled=True, words=(str(path),))


def test_a_schedule_is_run_through_once(tmp_path: Path) -> None:
    given = scheduled(tmp_path, 100, 250, 300)
    gaps = gaps_of(given, MODEL)
    load = load_of(given, 0, gaps)
    assert isinstance(load, Open)
    assert list(load.arrivals.gaps(0, 0)) == pytest.approx([0.1, 0.15, 0.05])


def test_a_schedule_of_one_moment(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="different times"):
        gaps_of(scheduled(tmp_path, 0, 0), MODEL)


def test_data() -> None:
    given = data_of(options(is_zero=True, batch=4, shared_memory=True, output_bytes=7, parameters=(("a", 1),)), MODEL)
    assert given.sources.words == ("zero",)
    assert given.batch == 4
    assert given.memory is not None
    assert given.memory.output_bytes == 7
    assert given.parameters == {"a": 1}


def test_sequences_are_as_many_as_requests_in_flight_but_at_a_rate() -> None:
    assert data_of(options(), MODEL).sequences.active == 0
    assert data_of(options(rates=Range(1, 1, 1), sequences=7), MODEL).sequences.active == 7


def test_bodies_that_do_not_say_are_not_streamed() -> None:
    given = data_of(options(kind=ServiceKind.OPENAI, endpoint="x", words=("x",)), MODEL)
    assert given.form is Form.OPENAI
    assert given.body_members == {"model": "m", "stream": False}
