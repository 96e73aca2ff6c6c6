"""The command line of the benchmark: `make bench`, `python -m tests.bench --help`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import trio

from tests.bench import batching_efficiency, ensemble_overhead, report
from tests.bench.check import check
from tests.bench.contest import Failure, Outcome, Results, Turn, hold, turns
from tests.bench.load import LoadFailed, LoadGenerator, Measurement
from tests.bench.machine import this_machine
from tests.bench.memory import Memory, tree_memory
from tests.bench.peers import OURS, THEIRS, Peer, PeerError, Server, our_server, their_server
from tests.bench.prepare import DEFAULT_FOLDER, PreparationError, Tools, prepare
from tests.bench.rows import add_select, selected

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
TITLES = {OURS: "Trioton", THEIRS: "NVIDIA Triton"}
# Time for the work that follows start-up to end, before an idle server's memory is read.
SETTLE_SECONDS = 1.0
OVERHEAD_REQUESTS, OVERHEAD_ELEMENTS = 500, 16


@dataclass(slots=True)
class Entrant:
    """A server in the contest, and what was learnt of it besides its answers."""

    server: Server
    seconds_to_ready: list[float] = field(default_factory=list)
    version: str = "?"
    idle: Memory = field(default_factory=lambda: Memory(0, 0, 0))
    incidents: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return TITLES[self.server.peer.name]

    def facts(self) -> report.ServerFacts:
        process = self.server.process
        loaded = tree_memory(process.pid) if process is not None and self.server.is_running() else None
        ready = median(self.seconds_to_ready)
        return report.ServerFacts(
            title=self.title,
            version=self.version,
            numpy_version=self.server.peer.numpy_version,
            seconds_to_ready=ready,
            starts=len(self.seconds_to_ready),
            idle=self.idle,
            loaded=loaded,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is started here is also stopped
    try:
        tools = prepare()
        peers = list(_peers(tools, options.only))
        report_text = _compete(peers, tools, options)
    except (PreparationError, PeerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"\n{report_text}")
    if options.write:
        PAGE.write_text(report.replace_results(PAGE.read_text(), report_text))
        print(f"\nWritten to {PAGE}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measures this server and NVIDIA's Triton in turns, with NVIDIA's perf_analyzer, over loopback.",
    )
    parser.add_argument("--rounds", type=_positive, help="turns of each server per row (default 5; 1 with --quick)")
    parser.add_argument("--window-ms", type=_positive, help="one of a turn's three windows (default 1000; 500)")
    parser.add_argument("--quick", action="store_true", help="one short round: is it alive, and about how fast")
    parser.add_argument("--only", choices=(OURS, THEIRS), help="measure one server alone")
    add_select(parser)
    parser.add_argument("--write", action="store_true", help=f"put the result into {PAGE.parent.name}/{PAGE.name}")
    options = parser.parse_args(arguments)
    if options.write and (options.quick or options.only or options.select):
        parser.error("--write takes a whole run: not with --quick, --only or --select")
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.window_ms = options.window_ms or (500 if options.quick else 1000)
    options.rows = selected(parser, options.select)
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _peers(tools: Tools, only: str | None) -> Iterator[Peer]:
    if only != THEIRS:
        yield our_server()
    if only != OURS:
        yield their_server(tools)


def _compete(peers: Sequence[Peer], tools: Tools, options: argparse.Namespace) -> str:
    machine, began = this_machine(), time.monotonic()
    if machine.is_busy:
        busy = f"load average {machine.load_average:.2f} on {machine.cores} cores"
        print(f"The machine is busy ({busy}): do not trust these figures.", file=sys.stderr, flush=True)
    results = Results()
    load = LoadGenerator(tools.analyzer, tools.analyzer_environment, options.window_ms)
    with ExitStack() as stack:
        entrants = {}
        alone: Sequence[str] = ()
        for peer in peers:
            log = DEFAULT_FOLDER / f"{peer.name}.log"
            log.write_bytes(b"")
            entrants[peer.name] = entrant = Entrant(Server(peer, log))
            stack.callback(entrant.server.stop)
        _start(list(entrants.values()), starts=1 if options.quick else 3)
        try:
            hold(
                turns(options.rows, list(entrants), options.rounds),
                lambda turn: _attempt(turn, entrants[turn.server], load),
                results,
                _tell,
            )
            if options.only != THEIRS and options.select is None:
                alone = _measure_alone(load, options.rounds)
        except KeyboardInterrupt:
            if options.write:
                raise
            print("\nBroken off; this is what was measured.", flush=True)
        return report.render(
            report.Run(
                machine=machine,
                rows=options.rows,
                servers={name: entrant.facts() for name, entrant in entrants.items()},
                results=results,
                rounds=options.rounds,
                window_ms=options.window_ms,
                analyzer_version=tools.analyzer_version,
                minutes=(time.monotonic() - began) / 60,
                incidents=[incident for entrant in entrants.values() for incident in entrant.incidents],
                alone=alone,
            )
        )


def _measure_alone(load: LoadGenerator, rounds: int) -> Sequence[str]:
    """What our server costs beside the bare library, and a step of an ensemble beside the bare model."""
    print("  batching efficiency, and the overhead of ensembles", flush=True)
    try:
        efficiency = batching_efficiency.report(batching_efficiency.measure(load, our_server(), rounds=rounds))
    except (LoadFailed, PeerError) as error:
        efficiency = f"failed: {error}"
    overhead = ensemble_overhead.report(trio.run(ensemble_overhead.measure, OVERHEAD_REQUESTS, OVERHEAD_ELEMENTS))
    return [f"Batching efficiency:\n\n{efficiency}", f"Overhead of ensembles:\n\n```\n{overhead}\n```"]


def _start(entrants: Sequence[Entrant], *, starts: int) -> None:
    """Start the servers in turns to time them; the last start of each is left running, checked and warm."""
    for number in range(starts):
        for entrant in entrants:
            entrant.seconds_to_ready.append(entrant.server.start())
            if number < starts - 1:
                entrant.server.stop()
                continue
            time.sleep(SETTLE_SECONDS)
            if entrant.server.process is not None:
                entrant.idle = tree_memory(entrant.server.process.pid)
            entrant.version = check(entrant.server)
            print(f"{entrant.title} {entrant.version} is ready in {median(entrant.seconds_to_ready):.2f} s", flush=True)


def _attempt(turn: Turn, entrant: Entrant, load: LoadGenerator) -> Measurement:
    server = entrant.server
    try:
        if not server.is_running():
            server.start()
        return load.run(turn.row, server.address(turn.row.port))
    except PeerError as error:
        raise LoadFailed(str(error).splitlines()[0]) from error
    finally:
        if ended := server.end_description():
            entrant.incidents.append(f"{entrant.title} {ended} during {turn.row.label}, round {turn.round + 1}")
            server.stop()


def _tell(turn: Turn, outcome: Outcome) -> None:
    said = f"failed: {outcome.reason}" if isinstance(outcome, Failure) else report.describe(outcome)
    print(f"  round {turn.round + 1}  {turn.row.label:<16}  {TITLES[turn.server]:<13}  {said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
