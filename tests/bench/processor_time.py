"""What a request costs our server in processor time, row by row: `python -m tests.bench.processor_time`.

For use while developing: the figures hardly depend on what else the machine does, and a server of another checkout can
be measured beside this one's, in turns. The models are the benchmark's, and so is the load.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.bench.check import check
from tests.bench.load import LoadGenerator
from tests.bench.measurement import LoadFailed
from tests.bench.peers import (
    OURS,
    OURS_IN_PROCESS,
    SOURCE,
    THEIRS,
    Peer,
    PeerError,
    Server,
    in_process,
    our_server,
    their_server,
)
from tests.bench.prepare import DEFAULT_FOLDER, PreparationError, Tools, prepare
from tests.bench.processor import MICROSECONDS, Meter, Times
from tests.bench.rows import Row, add_select, selected
from tests.bench.table import NOT_MEASURED, table


@dataclass(slots=True)
class Costs:
    """Of one row on one server, by the round: its throughput per second, and the times per request."""

    row: Row
    title: str
    turns: dict[int, tuple[float, Times]] = field(default_factory=dict)

    def ratios(self, other: Costs) -> tuple[float, float] | None:
        """Its throughput and its processor time over the other's, the medians of the rounds' ratios: from one turn to
        the next a machine's speed changes less than from the first round to the last."""
        both = [(self.turns[number], other.turns[number]) for number in self.turns if number in other.turns]
        if not both:
            return None
        return (
            median(own[0] / others[0] for own, others in both),
            median(own[1].total / others[1].total for own, others in both),
        )

    def cells(self, first: Costs) -> list[str]:
        """Its line of the table; `first` is what it is compared with."""
        if (ratios := self.ratios(first)) is None:
            return [self.row.label, self.title, *[NOT_MEASURED] * 8]
        times = [each for _, each in self.turns.values()]
        parts = [
            [each.user for each in times],
            [each.system for each in times],
            [each.user + each.system for each in times],
            [each.workers for each in times],
            [each.total for each in times],
        ]
        figures = [f"{median(part) * MICROSECONDS:.0f}" for part in parts]
        throughput = f"{median(each for each, _ in self.turns.values()):,.0f}"
        return [self.row.label, self.title, *figures, f"{ratios[1]:.3f}", throughput, f"{ratios[0]:.3f}"]


def measure(servers: dict[str, Server], rows: Sequence[Row], load: LoadGenerator, rounds: int) -> list[Costs]:
    """All rows on all servers, in turns; what fails is told and left out."""
    costs = {(row, title): Costs(row, title) for row in rows for title in servers}
    for number in range(rounds):
        for row in rows:
            for title in list(servers)[:: 1 if number % 2 == 0 else -1]:
                try:
                    turn = _turn(servers[title], row, load)
                except (LoadFailed, OSError, ValueError) as error:
                    print(f"{row.label}, {title}: {error}", file=sys.stderr, flush=True)
                else:
                    costs[row, title].turns[number] = turn
    return list(costs.values())


def _turn(server: Server, row: Row, load: LoadGenerator) -> tuple[float, Times]:
    meter = Meter.begin(server, row.model)
    measured = load.run(row, server.address(row.port))
    return measured.throughput, meter.per_request()


def report(costs: Sequence[Costs]) -> str:
    times = ["user", "system", "server µs", "workers µs", "all µs"]
    header = ["row", "server", *times, "to the first", "infer/s", "to the first"]
    firsts: dict[Row, Costs] = {}
    return table(header, [each.cells(firsts.setdefault(each.row, each)) for each in costs], text_columns=2)


def peers(sources: Sequence[Path], modes: Sequence[str], tools: Tools) -> dict[str, Peer]:
    """The servers to measure, by what the table calls them."""
    found = {}
    for source in sources:
        place = "" if len(sources) == 1 else f" {source}"
        worker = our_server(source)
        if OURS in modes:
            found[f"worker{place}"] = worker
        if OURS_IN_PROCESS in modes:
            found[f"in process{place}"] = in_process(worker, DEFAULT_FOLDER)
    if THEIRS in modes:
        found["NVIDIA Triton"] = their_server(tools)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.processor_time", description="Measure what a request costs in processor time."
    )
    add_select(parser)
    parser.add_argument("--in-process", action="store_true", help="the models in the server's process")
    parser.add_argument("--worker", action="store_true", help="and in workers; that is the default")
    parser.add_argument("--triton", action="store_true", help="and NVIDIA's server")
    parser.add_argument(
        "--source", action="append", type=Path, metavar="FOLDER", help="another checkout's server; repeatable"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each row (default %(default)s)")
    parser.add_argument(
        "--window-ms", type=int, default=700, help="one of a turn's three windows (default %(default)s)"
    )
    options = parser.parse_args(arguments)
    rows = selected(parser, options.select)
    modes = [OURS_IN_PROCESS] * options.in_process + [THEIRS] * options.triton
    if options.worker or not options.in_process:
        modes.append(OURS)
    sources = [source.resolve() for source in options.source or [SOURCE]]
    try:
        tools = prepare()
        load = LoadGenerator.of(tools, options.window_ms)
        with ExitStack() as stack:
            servers: dict[str, Server] = {}
            for title, peer in peers(sources, modes, tools).items():
                log = DEFAULT_FOLDER / f"processor-time-{len(servers)}.log"
                log.write_bytes(b"")
                servers[title] = server = Server(peer, log)
                stack.callback(server.stop)
                server.start()
                check(server)
            print(report(measure(servers, rows, load, options.rounds)))
    except (PreparationError, PeerError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
