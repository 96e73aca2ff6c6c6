"""`wrk`: what it is told to send, and every output that holds no figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.bench.measurement import LoadFailed, Measurement
from tests.bench.rows import Row
from tests.bench.wrk import BODIES, arguments, parse_output, script

OUTPUT = """\
Running 3s test @ http://127.0.0.1:9/v2/models/add_sub/infer
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.81ms    1.02ms  22.75ms   95.17%
    Req/Sec     9.12k     1.01k   10.20k    83.33%
  Latency Distribution
     50%  850.00us
     75%    1.93ms
     90%    2.35ms
     99%    6.01ms
  27214 requests in 3.00s, 9.11MB read
Requests/sec:   9071.12
Transfer/sec:      3.04MB
"""


def test_the_output_gives_throughput_and_latencies() -> None:
    assert parse_output(OUTPUT) == Measurement(throughput=9071.12, p50=850, p99=6010)
    assert parse_output(OUTPUT.replace("6.01ms", "1.20s")).p99 == 1_200_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no figures"),
        (OUTPUT.replace("99%", "98%"), "no figures"),
        (OUTPUT.replace("9071.12", "0.00"), "no request was answered"),
        (OUTPUT + "  Non-2xx or 3xx responses: 12\n", "Non-2xx or 3xx responses: 12"),
        (OUTPUT + "  Socket errors: connect 0, read 3, write 0, timeout 0\n", "read 3"),
    ],
)
def test_an_output_that_does_not_count_says_why(text: str, says: str) -> None:
    with pytest.raises(LoadFailed, match=says):
        parse_output(text)


def test_the_requests_differ_and_are_what_the_model_takes() -> None:
    bodies = re.findall(r"\[=\[(.*?)\]=\]", script())
    assert len(set(bodies)) == len(bodies) == BODIES
    for tensor in json.loads(bodies[0])["inputs"]:
        assert (tensor["datatype"], tensor["shape"], len(tensor["data"])) == ("FP32", [1, 16], 16)


def test_the_row_becomes_arguments() -> None:
    given = arguments(Row("add_sub", "json", 16), "127.0.0.1:9", 1.2, Path("script.lua"))
    pairs = dict(zip(given[1:-1:2], given[2:-1:2], strict=True))
    assert given[0] == "--latency"
    assert (pairs["--connections"], pairs["--duration"], pairs["--script"]) == ("16", "2s", "script.lua")
    assert given[-1] == "http://127.0.0.1:9/v2/models/add_sub/infer"
