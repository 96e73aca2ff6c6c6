"""What REST over HTTP/2 costs beside HTTP/1.1: `python -m tests.bench.http_versions`.

The same requests in both versions, in turns, by `h2load` of nghttp2, which speaks both: the difference is HTTP/2's
alone. It is counted in the server's own processor time, since what the model costs is the same. Part of `make bench`.
`h2load` is a package of the system: `apt-get install nghttp2-client` on Debian.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from tests.bench.check import check
from tests.bench.goals import HTTP2_COST_LIMIT, at_most
from tests.bench.measurement import LoadFailed, last_words
from tests.bench.peers import SOURCE, PeerError, Server, our_server, plain_environment
from tests.bench.prepare import DEFAULT_FOLDER
from tests.bench.processor import MICROSECONDS, Meter, Times
from tests.bench.table import NOT_MEASURED, table
from tests.bench.wrk import ELEMENTS, INPUTS

ADVICE = "there is no h2load on PATH; on Debian, as root: apt-get install nghttp2-client"
GRACE_SECONDS = 20.0
LARGE_ELEMENTS = 150_000


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent again and again."""

    model: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def _small(*, binary: bool) -> Request:
    values = np.random.default_rng(0).random((len(INPUTS), ELEMENTS), np.float32)
    described: list[dict[str, object]] = [
        {"name": name, "datatype": "FP32", "shape": [1, ELEMENTS]}
        | ({"parameters": {"binary_data_size": 4 * ELEMENTS}} if binary else {"data": row.round(6).tolist()})
        for name, row in zip(INPUTS, values, strict=True)
    ]
    return _request("add_sub", described, values.tobytes() if binary else b"")


def _large() -> Request:
    size = 4 * LARGE_ELEMENTS
    described = {"name": "INPUT", "datatype": "FP32", "shape": [LARGE_ELEMENTS]}
    return _request("large", [described | {"parameters": {"binary_data_size": size}}], bytes(size))


def _request(model: str, inputs: Sequence[Mapping[str, object]], data: bytes) -> Request:
    if not data:
        return Request(model, json.dumps({"inputs": inputs}).encode())
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return Request(model, text + data, {"inference-header-content-length": str(len(text))})


@dataclass(frozen=True, slots=True)
class Row:
    """`streams` are requests in flight on each of so many connections over HTTP/2. Over HTTP/1.1 as many requests are
    in flight, one on a connection."""

    label: str
    request: Request
    connections: int
    streams: int = 1


ROWS = (
    Row("binary, 1 in flight", _small(binary=True), 1),
    Row("binary, 16 connections", _small(binary=True), 16),
    Row("binary, 16 streams of one", _small(binary=True), 1, 16),
    Row("JSON, 16 connections", _small(binary=False), 16),
    Row("600 kB in and out, 1 in flight", _large(), 1),
)


@dataclass(slots=True)
class Cost:
    """Of one row, round by round: a request's time of the server's own process, in either version."""

    row: Row
    http1: list[Times] = field(default_factory=list)
    http2: list[Times] = field(default_factory=list)

    def cells(self) -> list[str]:
        if not self.http1 or not self.http2:
            return [self.row.label, *[NOT_MEASURED] * 4]
        first, second = (median(map(_own, times)) for times in (self.http1, self.http2))
        figures = [f"{cost * MICROSECONDS:.0f}" for cost in (first, second)]
        return [self.row.label, *figures, f"{second / first:.2f}", at_most(second / first, HTTP2_COST_LIMIT)]


def _own(times: Times) -> float:
    return times.user + times.system


def arguments(row: Row, address: str, seconds: int, body: Path, *, is_http1: bool) -> list[str]:
    """For one run of `h2load`."""
    connections, streams = (row.connections * row.streams, 1) if is_http1 else (row.connections, row.streams)
    flags = [f"--clients={connections}", f"--max-concurrent-streams={streams}", f"--duration={seconds}s"]
    flags += [f"--data={body}", *(f"--header={name}: {value}" for name, value in row.request.headers.items())]
    return [*flags, *["--h1"] * is_http1, f"http://{address}/v2/models/{row.request.model}/infer"]


def check_output(text: str) -> None:
    """Raises LoadFailed where not every request was answered as it should be."""
    found = re.search(r"^requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout$", text, re.MULTILINE)
    statuses = re.search(r"^status codes: (\d+) 2xx, 0 3xx, 0 4xx, 0 5xx$", text, re.MULTILINE)
    if found is None or statuses is None or int(found[1]) < 1 or any(int(count) for count in found.groups()[1:]):
        raise LoadFailed(last_words(text) if found is None else found[0])


def measure(server: Server, rounds: int, seconds: int, rows: Sequence[Row] = ROWS) -> list[Cost]:
    """All rows, in turns. Raises LoadFailed, OSError, ValueError."""
    program = shutil.which("h2load")
    if program is None:
        raise LoadFailed(ADVICE)
    costs = [Cost(row) for row in rows]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        body = Path(folder) / "body"
        for number in range(rounds):
            for cost in costs:
                body.write_bytes(cost.row.request.body)
                for is_http1 in (True, False) if number % 2 == 0 else (False, True):
                    given = arguments(cost.row, server.address("http"), seconds, body, is_http1=is_http1)
                    meter = Meter.begin(server, cost.row.request.model)
                    check_output(_run([program, *given], seconds + GRACE_SECONDS))
                    (cost.http1 if is_http1 else cost.http2).append(meter.per_request())
    return costs


def _run(command: Sequence[str], limit: float) -> str:
    try:
        done = subprocess.run(
            command, env=plain_environment(), capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"h2load did not end within {limit:.0f} s") from None
    if done.returncode != 0:
        raise LoadFailed(last_words(done.stderr) or f"h2load ended with {done.returncode}")
    return done.stdout


def report(costs: Sequence[Cost]) -> str:
    header = ["requests", "HTTP/1.1, µs", "HTTP/2, µs", "HTTP/2 over HTTP/1.1", "goal"]
    return table(header, [cost.cells() for cost in costs], text_columns=1)


def measure_alone(rounds: int, seconds: int, source: Path = SOURCE) -> list[Cost]:
    """With a server of its own. Raises PeerError where it does not start, LoadFailed where a turn gave no figures."""
    log = DEFAULT_FOLDER / "http-versions.log"
    log.parent.mkdir(exist_ok=True)
    log.write_bytes(b"")
    server = Server(our_server(source), log)
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start()
        check(server)
        try:
            return measure(server, rounds, seconds)
        except (OSError, ValueError) as error:
            raise LoadFailed(str(error)) from error


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.http_versions", description="Measure what REST costs over HTTP/2 and HTTP/1.1."
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each row and version (default %(default)s)")
    parser.add_argument("--seconds", type=int, default=1, help="of one turn (default %(default)s)")
    parser.add_argument("--source", type=Path, default=SOURCE, metavar="FOLDER", help="another checkout's server")
    options = parser.parse_args(arguments)
    try:
        print(report(measure_alone(options.rounds, options.seconds, options.source.resolve())))
    except (PeerError, LoadFailed) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
