"""How much of a model's throughput is left through the server: `python -m tests.bench.batching_efficiency`.

A model that keeps one core busy is asked by many clients, one row each, and the dynamic batcher joins them. Beside it
the same framework is called in a loop of its own, with batches that are always full: no server can be faster.
The efficiency is the first rate over the second, in rows per second. Part of `make bench`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from tests.bench.dense_models import BATCH, FORMATS, WIDTH, DenseFormat, Rows
from tests.bench.forest_model import Forest
from tests.bench.load import LoadGenerator
from tests.bench.peers import Peer, Server, our_server
from tests.bench.prepare import DEFAULT_FOLDER, prepare
from tests.bench.rows import Port, Row
from tests.bench.table import table
from tests.bench.tensorflow_model import DenseTensorFlow

MODELS: tuple[DenseFormat, ...] = (*FORMATS, DenseTensorFlow(), Forest())
PROTOCOLS: tuple[Port, ...] = ("http", "grpc")
# For the batch that runs, the one that is given ahead, and as many requests again that are on their way.
CONCURRENCY = 4 * BATCH


@dataclass(slots=True)
class Efficiency:
    """What the rounds have shown for one kind of load; rates in rows per second."""

    row: Row
    served: list[float] = field(default_factory=list)
    direct: list[float] = field(default_factory=list)  # of the same rounds

    @property
    def ratios(self) -> list[float]:
        return [served / direct for served, direct in zip(self.served, self.direct, strict=True)]


def write_repository(folder: Path, formats: Sequence[DenseFormat]) -> Path:
    """The model repository of the model in these formats; returns its folder."""
    for each in formats:
        each.write(folder)
    return folder


def direct_rate(run: Callable[[Rows], Rows], seconds: float) -> float:
    """Rows per second of full batches, one after the other."""
    rows = np.random.default_rng(1).random((BATCH, WIDTH), dtype=np.float32)
    for _ in range(3):
        run(rows)
    runs, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        run(rows)
        runs += 1
    return runs * BATCH / (time.perf_counter() - began)


def measure(
    load: LoadGenerator,
    peer: Peer,
    *,
    rounds: int,
    folder: Path = DEFAULT_FOLDER,
    formats: Sequence[DenseFormat] = MODELS,
) -> list[Efficiency]:
    """All formats and kinds of load, in turns with the direct calls: the machine is not equally fast at all times.

    Raises:
        PeerError: the server does not start.
        LoadFailed: a turn gave no figures.
    """
    repository = write_repository(folder / "efficiency", formats)
    direct = {each.name: each.open(repository) for each in formats}
    seconds = load.seconds
    found = [Efficiency(Row(each.name, protocol, CONCURRENCY)) for each in formats for protocol in PROTOCOLS]
    log = folder / "efficiency.log"
    log.write_bytes(b"")
    flags = [flag for each in formats for flag in each.flags]
    server = Server(replace(peer, models=repository, command=(*peer.command, *flags)), log)
    try:
        server.start()
        for _ in range(rounds):
            for each in found:
                run = direct[each.row.model]
                before = direct_rate(run, seconds / 2)
                each.served.append(load.run(each.row, server.address(each.row.port)).throughput)
                each.direct.append((before + direct_rate(run, seconds / 2)) / 2)
    finally:
        server.stop()
    return found


def report(found: Sequence[Efficiency]) -> str:
    header = ["format", "protocol", "concurrency", "rows/s through the server", "rows/s direct", "efficiency", "range"]
    lines = [
        [
            each.row.model,
            each.row.protocol,
            str(each.row.concurrency),
            f"{median(each.served):,.0f}",
            f"{median(each.direct):,.0f}",
            f"{median(each.ratios):.2f}",
            f"{min(each.ratios):.2f} to {max(each.ratios):.2f}",
        ]
        for each in found
    ]
    return table(header, lines, text_columns=2)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure how much of a model's throughput is left through the server.")
    parser.add_argument("--rounds", type=int, default=3, help="turns for each kind of load (default %(default)s)")
    parser.add_argument("--window-ms", type=int, default=1000, help="one of a turn's three windows (default 1000)")
    parser.add_argument("--format", action="append", choices=[each.name for each in MODELS], help="only this one")
    options = parser.parse_args(arguments)
    formats = [each for each in MODELS if options.format is None or each.name in options.format]
    tools = prepare()
    load = LoadGenerator.of(tools, options.window_ms)
    print(report(measure(load, our_server(), rounds=options.rounds, formats=formats)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
