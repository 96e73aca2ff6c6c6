"""What the metrics and logs that are on by default cost a request: `python -m tests.bench.default_cost`.

Two servers in turns, one with the defaults and one with every metric and log turned off (traces are off by default),
both with the model in the server's process, where a request costs least and so these cost the largest part of it. It
is counted in processor time. All of them together are an upper bound of each. Part of `make bench`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

from tests.bench.goals import DEFAULT_COST_LIMIT, at_most
from tests.bench.load import LoadGenerator
from tests.bench.measurement import LoadFailed
from tests.bench.peers import Peer, PeerError, Server, in_process, our_server
from tests.bench.prepare import DEFAULT_FOLDER, PreparationError, prepare
from tests.bench.processor import MICROSECONDS, Meter
from tests.bench.rows import Row
from tests.bench.table import table

ROWS = (Row("add_sub", "http", 1), Row("add_sub", "http", 16), Row("add_sub", "grpc", 16))
MOST_WINDOW_MS = 400
OFF = (
    "--allow-metrics=false",
    "--metrics-config=counter_latencies=false",
    "--metrics-config=histogram_latencies=false",
    "--log-info=false",
    "--log-warning=false",
    "--log-error=false",
)


@dataclass(frozen=True, slots=True)
class DefaultCost:
    """Of one row: microseconds of a request in each round, with the defaults and with everything off."""

    row: Row
    on: Sequence[float]
    off: Sequence[float]

    @property
    def percents(self) -> list[float]:
        """What the defaults add in each round, of a request without them."""
        return [100 * (on / off - 1) for on, off in zip(self.on, self.off, strict=True)]


def measure(load: LoadGenerator, rounds: int, folder: Path = DEFAULT_FOLDER) -> list[DefaultCost]:
    """At least two rounds; many short ones say more than few long ones.

    Raises PeerError where a server does not start, LoadFailed where a turn gave no figures.
    """
    load = replace(load, window_ms=min(load.window_ms, MOST_WINDOW_MS))
    on = in_process(our_server(), folder)
    with ExitStack() as stack:
        servers = [_start(stack, peer, folder) for peer in (on, replace(on, command=(*on.command, *OFF)))]
        return [_measure_row(row, servers, load, rounds) for row in ROWS]


def _start(stack: ExitStack, peer: Peer, folder: Path) -> Server:
    log = folder / "default-cost.log"
    log.write_bytes(b"")
    server = Server(peer, log)
    stack.callback(server.stop)
    server.start()
    return server


def _measure_row(row: Row, servers: Sequence[Server], load: LoadGenerator, rounds: int) -> DefaultCost:
    costs: list[list[float]] = [[] for _ in servers]
    for number in range(rounds + 1):
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            cost = _cost(row, servers[index], load)
            if number > 0:  # the first is to warm up
                costs[index].append(cost)
    return DefaultCost(row, *costs)


def _cost(row: Row, server: Server, load: LoadGenerator) -> float:
    try:
        meter = Meter.begin(server, row.model)
        load.run(row, server.address(row.port))
        return meter.per_request().total * MICROSECONDS
    except (OSError, ValueError) as error:
        raise LoadFailed(str(error)) from error


def report(costs: Sequence[DefaultCost]) -> str:
    header = ["row", "defaults, µs", "all off, µs", "cost %", "half of the rounds", "goal"]
    lines = []
    for cost in costs:
        low, middle, high = quantiles(cost.percents, n=4, method="inclusive")
        line = [cost.row.label, f"{median(cost.on):.1f}", f"{median(cost.off):.1f}", f"{middle:.1f}"]
        lines.append([*line, f"{low:.1f} to {high:.1f}", at_most(middle, DEFAULT_COST_LIMIT)])
    return table(header, lines, text_columns=1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.default_cost", description="Measure what the metrics and logs of the defaults cost."
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of each server per row (default %(default)s)")
    options = parser.parse_args(arguments)
    try:
        print(report(measure(LoadGenerator.of(prepare(), MOST_WINDOW_MS), options.rounds)))
    except (PreparationError, PeerError, LoadFailed) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
