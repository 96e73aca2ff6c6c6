"""How many Python calls a request costs our server, by function: `python -m tests.bench.python_calls`.

For use while developing: where a server is written in Python, calls are most of what a request costs, and unlike times
they hardly depend on what else the machine does. Counted are those of the server's main thread, Trio's among them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.check import check
from tests.bench.load import LoadGenerator
from tests.bench.measurement import LoadFailed
from tests.bench.peers import IN_LOOP, Peer, PeerError, Server, in_process, our_server
from tests.bench.prepare import DEFAULT_FOLDER, PreparationError, prepare
from tests.bench.processor import answered
from tests.bench.rows import ROWS, Row, add_select, selected
from tests.bench.table import table

# Of a turn, after the load has begun: counting makes the server several times slower.
SETTLING_SECONDS = 1.0
COUNTING_SECONDS = 2.0
WRITING_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Calls by function, and the requests that were answered meanwhile."""

    requests: int
    calls: Sequence[tuple[int, str]]

    @property
    def per_request(self) -> float:
        return sum(count for count, _ in self.calls) / self.requests


def counted(peer: Peer, file: Path) -> Peer:
    """The same server, whose calls are counted into `file`."""
    python, _, module, *rest = peer.command
    assert module == "trioton", peer.command
    return replace(peer, command=(python, "-m", "tests.bench.counted", str(file), *rest))


def count(server: Server, file: Path, row: Row, load: LoadGenerator) -> Counts:
    """Of one row. Raises LoadFailed, OSError, ValueError."""
    assert server.process is not None
    file.unlink(missing_ok=True)
    failures: list[LoadFailed] = []

    def run() -> None:
        try:
            load.run(row, server.address(row.port))
        except LoadFailed as error:
            failures.append(error)

    loading = threading.Thread(target=run)
    loading.start()
    try:
        time.sleep(SETTLING_SECONDS)
        before = answered(server, row.model)
        server.process.send_signal(signal.SIGUSR2)
        time.sleep(COUNTING_SECONDS)
        server.process.send_signal(signal.SIGUSR2)
        calls = _read(file)
        requests = answered(server, row.model) - before
    finally:
        loading.join()
    if failures:
        raise failures[0]
    if requests < 1:
        raise ValueError(f"{row.label}: no request was answered while calls were counted")
    return Counts(requests, calls)


def _read(file: Path) -> list[tuple[int, str]]:
    limit = time.monotonic() + WRITING_SECONDS
    while not file.is_file():
        if time.monotonic() > limit:
            raise ValueError("the server has not written what it counted")
        time.sleep(0.01)
    return [(calls, function) for calls, function in json.loads(file.read_text())]


def report(row: Row, counts: Counts, most: int) -> str:
    lines = [[function, f"{calls / counts.requests:.2f}"] for calls, function in counts.calls[:most]]
    title = f"{row.label}: {counts.per_request:.0f} calls a request, of {counts.requests:,} requests"
    return f"{title}\n\n{table(['function', 'calls'], lines, text_columns=1)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.python_calls", description="Count the Python calls that a request costs."
    )
    add_select(parser)
    parser.add_argument(
        "--in-process",
        nargs="?",
        const=IN_LOOP,
        choices=(IN_LOOP, "in_process"),
        help="the models in the server's process, not in workers: in its loop, or in threads",
    )
    parser.add_argument("--most", type=int, default=40, help="how many functions to print (default %(default)s)")
    options = parser.parse_args(arguments)
    rows = selected(parser, options.select) if options.select else [each for each in ROWS if each.concurrency == 64]
    peer = our_server()
    if options.in_process:
        peer = in_process(peer, DEFAULT_FOLDER, options.in_process)
    try:
        load = LoadGenerator.of(prepare(), int(1000 * (SETTLING_SECONDS + COUNTING_SECONDS) / 2))
        file, log = DEFAULT_FOLDER / "python-calls.json", DEFAULT_FOLDER / "python-calls.log"
        log.write_bytes(b"")
        server = Server(counted(peer, file), log)
        with ExitStack() as stack:
            stack.callback(server.stop)
            server.start()
            check(server)
            for row in rows:
                print(report(row, count(server, file, row, load), options.most), flush=True)
    except (PreparationError, PeerError, LoadFailed, OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
