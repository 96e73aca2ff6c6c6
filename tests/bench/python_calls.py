"""How many Python calls a request costs our server, by function: `python -m tests.bench.python_calls`.

For use while developing: where a server is written in Python, calls are most of what a request costs, and unlike times
they hardly depend on what else the machine does. Counted are those of the server's main thread, Trio's among them.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench import counted
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


@dataclass(frozen=True, slots=True)
class CallsMade:
    """In some time, by function."""

    by_function: Mapping[str, int]
    seconds: float


class CallMeter:
    """The calls of a server that is `scripted`."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path) -> None:
        self._process = process
        self._file = file

    def begin(self) -> None:
        """Raises ValueError."""
        self._file.touch()
        self._process.send_signal(signal.SIGUSR2)
        self._wait(is_there=False)

    def end(self) -> list[tuple[int, str]]:
        """Those since `begin`, the most called first. Raises ValueError."""
        self._process.send_signal(signal.SIGUSR2)
        self._wait(is_there=True)
        return [(calls, function) for calls, function in json.loads(self._file.read_text())]

    def during(self, work: Callable[[], object]) -> CallsMade:
        """Raises ValueError."""
        self.begin()
        began = time.monotonic()
        work()
        seconds = time.monotonic() - began
        made: Counter[str] = Counter()
        for calls, function in self.end():
            made[function] += calls
        return CallsMade(made, seconds)

    def _wait(self, *, is_there: bool) -> None:
        limit = time.monotonic() + WRITING_SECONDS
        while self._file.is_file() is not is_there:
            if time.monotonic() > limit:
                raise ValueError("the server does not count its calls")
            time.sleep(0.01)


def scripted(peer: Peer, file: Path) -> Peer:
    """The same server, whose calls are counted into `file` when it is asked to."""
    python, _, module, *rest = peer.command
    assert module == "trioton", peer.command
    return replace(peer, command=(python, counted.__file__, str(file), *rest))


def count(server: Server, file: Path, row: Row, load: LoadGenerator) -> Counts:
    """Of one row. Raises LoadFailed, OSError, ValueError."""
    assert server.process is not None
    meter = CallMeter(server.process, file)
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
        meter.begin()
        time.sleep(COUNTING_SECONDS)
        calls = meter.end()
        requests = answered(server, row.model) - before
    finally:
        loading.join()
    if failures:
        raise failures[0]
    if requests < 1:
        raise ValueError(f"{row.label}: no request was answered while calls were counted")
    return Counts(requests, calls)


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
        server = Server(scripted(peer, file), log)
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
