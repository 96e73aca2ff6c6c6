"""HTTP/2 beside HTTP/1.1: what `h2load` is told to send, every output that does not count, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.http_versions import ROWS, Cost, Row, arguments, check_output, report
from tests.bench.measurement import LoadFailed
from tests.bench.processor import Times

OUTPUT = """\
finished in 1.00s, 5212.00 req/s, 2.10MB/s
requests: 5212 total, 5213 started, 5212 done, 5212 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 5212 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 2.10MB (2203676) total, 71.26KB (72968) headers (space savings 91.52%), 1.67MB (1751232) data
"""
MANY = ROWS[2]


def test_an_output_of_good_answers_counts() -> None:
    check_output(OUTPUT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        OUTPUT.replace("0 failed", "1 failed"),
        OUTPUT.replace("0 errored", "3 errored"),
        OUTPUT.replace("5212 succeeded", "0 succeeded"),
        OUTPUT.replace("0 4xx", "5212 4xx"),
    ],
)
def test_an_output_that_does_not_count(text: str) -> None:
    with pytest.raises(LoadFailed):
        check_output(text)


def test_as_many_requests_are_in_flight_in_either_version() -> None:
    second = arguments(MANY, "127.0.0.1:9", 1, Path("body"), is_http1=False)
    first = arguments(MANY, "127.0.0.1:9", 1, Path("body"), is_http1=True)
    assert second[:3] == ["--clients=1", "--max-concurrent-streams=16", "--duration=1s"]
    assert first[:3] == ["--clients=16", "--max-concurrent-streams=1", "--duration=1s"]
    assert "--h1" in first
    assert "--h1" not in second
    assert second[-1] == "http://127.0.0.1:9/v2/models/add_sub/infer"


@pytest.mark.parametrize("row", ROWS, ids=[row.label for row in ROWS])
def test_the_requests_are_what_the_models_take(row: Row) -> None:
    length = row.request.headers.get("inference-header-content-length")
    body = row.request.body
    text = json.loads(body if length is None else body[: int(length)])
    sizes = [each.get("parameters", {}).get("binary_data_size", 0) for each in text["inputs"]]
    assert len(body) == (len(body) if length is None else int(length) + sum(sizes))


def test_the_table_has_the_medians_and_the_verdict() -> None:
    cost = Cost(MANY)
    cost.http1 = [Times(20e-6, 20e-6, 5), Times(1, 1, 5), Times(20e-6, 10e-6, 5)]
    cost.http2 = [Times(30e-6, 18e-6, 5)]
    cells = [cell.strip() for cell in report([cost]).splitlines()[2].strip("|").split("|")]
    assert cells == [MANY.label, "40", "48", "1.20", "≤ 1.50 met"]
    assert "-" in report([Cost(MANY)])
