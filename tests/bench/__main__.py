"""The command line of the benchmark: `make bench`, `python -m tests.bench --help`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import trio

from tests.bench import (
    batching_efficiency,
    default_cost,
    default_instructions,
    ensemble_overhead,
    http_versions,
    jobs,
    report,
)
from tests.bench.callgrind import CountFailed, is_possible
from tests.bench.contest import Failure, Outcome, Results, Turn, hold, turns
from tests.bench.entrants import TITLES, Entrant, start
from tests.bench.load import LoadGenerator
from tests.bench.machine import this_machine
from tests.bench.measurement import LoadFailed
from tests.bench.peers import OURS, Peer, PeerError, Server, in_process, our_server, their_server
from tests.bench.prepare import DEFAULT_FOLDER, PreparationError, Tools, prepare
from tests.bench.rows import Row, add_select, selected
from tests.bench.wrk import ADVICE

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
OVERHEAD_REQUESTS, OVERHEAD_ELEMENTS = 500, 16
HTTP_VERSIONS_SECONDS = 1


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
    parser.add_argument("--only", action="append", choices=tuple(TITLES), help="only this server; repeatable")
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


def _peers(tools: Tools, only: Sequence[str] | None) -> Iterator[Peer]:
    for peer in (our_server(), in_process(our_server(), DEFAULT_FOLDER), their_server(tools)):
        if only is None or peer.name in only:
            yield peer


def possible_rows(rows: Sequence[Row], load: LoadGenerator) -> tuple[list[Row], list[str]]:
    """Those that there is a program for, and what to say of the others."""
    possible = [row for row in rows if load.can_run(row)]
    return possible, [f"{row.label} was left out: {ADVICE}" for row in rows if row not in possible]


def _compete(peers: Sequence[Peer], tools: Tools, options: argparse.Namespace) -> str:
    machine, began = this_machine(), time.monotonic()
    if machine.is_busy:
        busy = f"load average {machine.load_average:.2f} on {machine.cores} cores"
        print(f"The machine is busy ({busy}): do not trust these figures.", file=sys.stderr, flush=True)
    results = Results()
    load = LoadGenerator.of(tools, options.window_ms)
    rows, left_out = possible_rows(options.rows, load)
    for line in left_out:
        print(line, file=sys.stderr, flush=True)
    with ExitStack() as stack:
        entrants = {}
        alone: Sequence[str] = ()
        for peer in peers:
            log = DEFAULT_FOLDER / f"{peer.name}.log"
            log.write_bytes(b"")
            entrants[peer.name] = entrant = Entrant(Server(peer, log))
            stack.callback(entrant.server.stop)
        start(list(entrants.values()), starts=1 if options.quick else 3)
        try:
            hold(
                turns(rows, list(entrants), options.rounds),
                lambda turn: entrants[turn.server].attempt(turn, load),
                results,
                _tell,
            )
            if OURS in entrants and options.select is None:
                alone = _measure_alone(load, options.rounds)
        except KeyboardInterrupt:
            if options.write:
                raise
            print("\nBroken off; this is what was measured.", flush=True)
        return report.render(
            report.Run(
                machine=machine,
                rows=rows,
                servers={name: entrant.facts() for name, entrant in entrants.items()},
                results=results,
                rounds=options.rounds,
                window_ms=options.window_ms,
                analyzer_version=tools.analyzer_version,
                minutes=(time.monotonic() - began) / 60,
                incidents=left_out + [incident for entrant in entrants.values() for incident in entrant.incidents],
                alone=alone,
            )
        )


def _measure_alone(load: LoadGenerator, rounds: int) -> Sequence[str]:
    """What our defaults cost, our server beside the bare library, HTTP/2 beside HTTP/1.1, jobs, and an ensemble's step
    beside the bare model."""
    print("  the defaults, batching efficiency, HTTP/2, jobs, and the overhead of ensembles", flush=True)
    try:
        if is_possible():
            defaults = default_instructions.report(default_instructions.measure())
        else:
            defaults = default_cost.report(default_cost.measure(load, 2 * rounds))
    except (LoadFailed, PeerError, CountFailed) as error:
        defaults = f"failed: {error}"
    try:
        efficiency = batching_efficiency.report(batching_efficiency.measure(load, our_server(), rounds=min(rounds, 3)))
    except (LoadFailed, PeerError) as error:
        efficiency = f"failed: {error}"
    try:
        versions = http_versions.report(http_versions.measure_alone(min(rounds, 3), HTTP_VERSIONS_SECONDS))
    except (LoadFailed, PeerError) as error:
        versions = f"failed: {error}"
    try:
        of_jobs = jobs.report(jobs.measure(load, min(rounds, 3)))
    except (LoadFailed, PeerError, OSError) as error:
        of_jobs = f"failed: {error}"
    overhead = ensemble_overhead.report(trio.run(ensemble_overhead.measure, OVERHEAD_REQUESTS, OVERHEAD_ELEMENTS))
    return [
        f"What is on by default:\n\n{defaults}",
        f"Batching efficiency:\n\n{efficiency}",
        f"REST over HTTP/2:\n\n{versions}",
        f"Jobs:\n\n{of_jobs}",
        f"Overhead of ensembles:\n\n```\n{overhead}\n```",
    ]


def _tell(turn: Turn, outcome: Outcome) -> None:
    said = f"failed: {outcome.reason}" if isinstance(outcome, Failure) else report.describe(outcome)
    print(f"  round {turn.round + 1}  {turn.row.label:<17}  {TITLES[turn.server]:<19}  {said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
