"""Jobs: how many a server takes, their rows per second, and what live requests pay: `python -m tests.bench.jobs`.

Jobs of one request each and jobs of long lists go through the HTTP interface; beside them the same rows go through
`trioton batch`. Then clients ask the model that a long job runs on, and ask it again without the job: the ratio of
their p99 is held to a goal. So with three models: one is quick, one takes 10 ms for a batch of any size, and one
takes 10 ms for each row. Part of `make bench`.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.goals import JOBS_TAIL_LIMIT, at_most
from tests.bench.load import LoadGenerator
from tests.bench.measurement import LoadFailed
from tests.bench.peers import MODELS, SOURCE, PeerError, Server, our_server, plain_environment
from tests.bench.prepare import DEFAULT_FOLDER, prepare
from tests.bench.rows import Row
from tests.bench.table import table
from tests.bench.wrk import ELEMENTS, INPUTS

JOBS, CLIENTS = 400, 8
LISTS, ROWS_OF_A_LIST = 2, 10_000
BATCH_ROWS = 50_000
LIVE_CLIENTS = (1, 4, 16)
LIVE_MODELS = ("add_sub", "constant", "linear")
# These serve some hundred requests a second: the few of them that decide the p99 say something in longer windows only.
SLOW_MODELS, SLOW_WINDOWS = ("constant", "linear"), 7
JOB_MODELS = Path(__file__).parent / "job_models"
TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 0.02


@dataclass(slots=True)
class Found:
    """What the rounds have shown; rates per second, and by the model and its number of live clients their p99 in
    microseconds, and the rows per second that a job had beside them."""

    jobs_taken: list[float] = field(default_factory=list)
    jobs_ended: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    batch_rows: list[float] = field(default_factory=list)
    alone: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    beside: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    rows_beside: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def ratio(self, load: tuple[str, int]) -> float:
        pairs = zip(self.alone[load], self.beside[load], strict=True)
        return median(beside / alone for alone, beside in pairs)


class Client:
    """One connection."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        self._connection.close()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Raises LoadFailed where the server refuses, OSError."""
        self._connection.request(method, path, None if body is None else json.dumps(body))
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise LoadFailed(f"{method} {path}: {response.status} {text[:200].decode(errors='replace')}")
        return json.loads(text)

    def counts(self, job_id: str) -> Mapping[str, int]:
        found: Mapping[str, int] = self.call("GET", f"/v2/jobs/{job_id}")["counts"]
        return found

    def wait_ended(self, job_id: str) -> None:
        """Raises LoadFailed where not all of it has succeeded."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (job := self.call("GET", f"/v2/jobs/{job_id}"))["state"] in ("queued", "running"):
            if time.monotonic() > deadline:
                raise LoadFailed(f"a job has not ended: {job['counts']}")
            time.sleep(POLL_SECONDS)
        if job["counts"]["succeeded"] != job["counts"]["total"]:
            raise LoadFailed(f"a job has not succeeded: {job['state']}, {job['counts']}")


def request_of(row: int) -> dict[str, Any]:
    """To any of the models."""
    data = [float(row % 1000 + place) for place in range(ELEMENTS)]
    return {
        "inputs": [{"name": name, "datatype": "FP32", "shape": [1, ELEMENTS], "data": data} for name in INPUTS],
    }


def job_rates(address: str, jobs: int = JOBS, clients: int = CLIENTS) -> tuple[float, float]:
    """Jobs of one request each: how many per second were taken (202: they are on the disk), and have ended."""

    def submit(share: range) -> str:
        with closing(Client(address)) as client:
            ids = [client.call("POST", "/v2/models/add_sub/jobs", request_of(row))["id"] for row in share]
        return str(ids[-1])

    shares = [range(first, jobs, clients) for first in range(min(clients, jobs))]
    with ThreadPoolExecutor(len(shares)) as pool, closing(Client(address)) as client:
        began = time.perf_counter()
        last = list(pool.map(submit, shares))
        taken = time.perf_counter() - began
        while client.call("GET", "/v2/jobs?state=queued,running&limit=1")["jobs"]:
            time.sleep(POLL_SECONDS)
        ended = time.perf_counter() - began
        for job_id in last:
            client.wait_ended(job_id)
    return jobs / taken, jobs / ended


def submit_list(client: Client, rows: int, model: str = "add_sub") -> str:
    requests = [{"model_name": model, **request_of(row)} for row in range(rows)]
    return str(client.call("POST", "/v2/jobs", {"requests": requests})["id"])


def row_rate(address: str, lists: int = LISTS, rows: int = ROWS_OF_A_LIST) -> float:
    """Rows per second of jobs with long lists, from the first request to the last result."""
    with closing(Client(address)) as client:
        began = time.perf_counter()
        for job_id in [submit_list(client, rows) for _ in range(lists)]:
            client.wait_ended(job_id)
        return lists * rows / (time.perf_counter() - began)


def batch_rate(rows: int = BATCH_ROWS) -> float:
    """Rows per second of `trioton batch`, without the start of the model."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        source, target = Path(name, "in.jsonl"), Path(name, "out.jsonl")
        with source.open("w") as file:
            for row in range(rows):
                file.write(json.dumps(request_of(row)) + "\n")
        words = ["batch", str(source), str(target), "--model=add_sub", f"--model-repository={MODELS}"]
        ran = subprocess.run(
            [sys.executable, "-m", "trioton", *words],
            env={**plain_environment(), "PYTHONPATH": str(SOURCE)},
            cwd=SOURCE,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        if ran.returncode != 0:
            raise LoadFailed(f"trioton batch: {ran.returncode} {ran.stderr[-500:]}")
        state = json.loads(target.with_name("out.jsonl.state").read_text())
    return float(state["done"] / state["seconds"])


@contextmanager
def long_job(address: str, model: str) -> Iterator[Callable[[], int]]:
    """A job runs as long as the block lasts; what it gives tells how many of its rows have ended. Raises LoadFailed
    where it has ended before."""
    with closing(Client(address)) as client:
        ids = [submit_list(client, ROWS_OF_A_LIST, model) for _ in range(LISTS)]
        while not client.counts(ids[0])["succeeded"]:
            time.sleep(POLL_SECONDS)
        yield lambda: sum(client.counts(job_id)["succeeded"] for job_id in ids)
        left = client.counts(ids[-1])["queued"]
        for job_id in ids:
            client.call("POST", f"/v2/jobs/{job_id}/cancel")
        if not left:
            raise LoadFailed("the job had ended before the live requests were measured: give it more rows")


def measure_live(load: LoadGenerator, address: str, found: Found, model: str, clients: int) -> None:
    """p99 of so many clients, without a job and beside one."""
    row, place = Row(model, "http", clients), (model, clients)
    found.alone.setdefault(place, []).append(load.run(row, address).p99)
    with long_job(address, model) as rows:
        began, before = time.perf_counter(), rows()
        found.beside.setdefault(place, []).append(load.run(row, address).p99)
        found.rows_beside.setdefault(place, []).append((rows() - before) / (time.perf_counter() - began))


def measure(
    load: LoadGenerator, rounds: int, models: Sequence[str] = LIVE_MODELS, folder: Path = DEFAULT_FOLDER
) -> Found:
    """All of it, in turns; live requests to these models, where these are all, the rates too. Raises
    PeerError, LoadFailed, OSError."""
    found, slow = Found(), replace(load, window_ms=SLOW_WINDOWS * load.window_ms)
    log = folder / "jobs.log"
    log.write_bytes(b"")
    with tempfile.TemporaryDirectory(prefix="bench-jobs-") as store:
        peer = our_server()
        flags = f"--jobs-store={store}", f"--model-repository={JOB_MODELS}"
        server = Server(replace(peer, command=(*peer.command, *flags)), log)
        try:
            server.start()
            address = server.address("http")
            for _ in range(rounds):
                for model, clients in itertools.product(models, LIVE_CLIENTS):
                    measure_live(slow if model in SLOW_MODELS else load, address, found, model, clients)
                if models != LIVE_MODELS:
                    continue
                taken, ended = job_rates(address)
                found.jobs_taken.append(taken)
                found.jobs_ended.append(ended)
                found.rows.append(row_rate(address))
                found.batch_rows.append(batch_rate())
        finally:
            server.stop()
    return found


def report(found: Found) -> str:
    rates = {
        f"jobs of one request that were taken, by {CLIENTS} connections": found.jobs_taken,
        "the same until all had ended": found.jobs_ended,
        f"rows of jobs of {ROWS_OF_A_LIST} rows": found.rows,
        "rows of `trioton batch`": found.batch_rows,
    }
    lines = [
        [name, f"{median(each):,.0f}", f"{min(each):,.0f} to {max(each):,.0f}"] for name, each in rates.items() if each
    ]
    live = [
        [
            model,
            f"{clients}",
            f"{median(found.alone[model, clients]) / 1000:.2f}",
            f"{median(found.beside[model, clients]) / 1000:.2f}",
            f"{found.ratio((model, clients)):.2f}",
            at_most(found.ratio((model, clients)), JOBS_TAIL_LIMIT),
            f"{median(found.rows_beside[model, clients]):,.1f}",
        ]
        for model, clients in found.alone
    ]
    heads = [
        "model",
        "live clients",
        "p99 ms alone",
        "p99 ms beside a job",
        "ratio",
        "goal",
        "rows of the job per second",
    ]
    tables = [table(["what", "per second", "range"], lines, text_columns=1)] if lines else []
    return "\n\n".join([*tables, table(heads, live, text_columns=1)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure jobs, and what live requests pay for them.")
    parser.add_argument("--rounds", type=int, default=3, help="turns of all that is measured (default %(default)s)")
    parser.add_argument(
        "--window-ms",
        type=int,
        default=500,
        help="one of a load's three windows, of slow models 7 times that (default 500)",
    )
    parser.add_argument("--model", choices=LIVE_MODELS, help="only live requests to this model, beside its job")
    options = parser.parse_args(arguments)
    models = LIVE_MODELS if options.model is None else (options.model,)
    try:
        print(report(measure(LoadGenerator.of(prepare(), options.window_ms), options.rounds, models)))
    except (LoadFailed, PeerError, OSError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
