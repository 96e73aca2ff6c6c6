"""What a request costs our server in instructions, system calls and Python calls, row by row:
`python -m tests.bench.request_instructions`. Needs valgrind (`apt-get install valgrind`).

For use while developing, as `tests.bench.processor_time` is: servers of several checkouts are counted in turns, and the
last is compared with the first. Counts do not depend on what else the machine does. Requests come in bursts of as many
as the row has in flight (`bursts`), to the benchmark's models. What a server does by itself meanwhile is counted
before, and taken off.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from tests.bench.bursts import bursts
from tests.bench.callgrind import ADVICE, READY_SECONDS, Counter, CountFailed, Work, counted, forget, is_possible
from tests.bench.check import check
from tests.bench.memory import process_tree
from tests.bench.peers import OURS, OURS_IN_PROCESS, SOURCE, Peer, PeerError, Server, in_process, our_server
from tests.bench.prepare import DEFAULT_FOLDER
from tests.bench.python_calls import CallMeter, scripted
from tests.bench.rows import Row, add_select, selected
from tests.bench.table import NOT_MEASURED, table

# Of a turn: many where each costs little.
REQUESTS: Mapping[str, int] = {"add_sub": 384, "large": 48}
WARMING_REQUESTS = 128
IDLE_SECONDS = 3.0
TURNS = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of the table."""

    name: str
    of: Callable[[Cost], float]
    digits: int = 0


@dataclass(slots=True)
class Cost:
    """Of a request of one row to one server, turn by turn."""

    server: list[Work] = field(default_factory=list)
    workers: list[Work] = field(default_factory=list)  # all of them
    calls: list[Mapping[str, float]] = field(default_factory=list)  # of the server, by function

    def call(self, function: str) -> float:
        return median(turn.get(function, 0.0) for turn in self.calls)


def _of_works(works: Sequence[Work], what: Callable[[Work], float]) -> float:
    return median(map(what, works)) if works else math.nan


FIGURES = (
    Figure("instructions", lambda cost: _of_works(cost.server, lambda work: work.instructions)),
    Figure("system calls", lambda cost: _of_works(cost.server, lambda work: work.system_calls), 1),
    Figure(
        "Python calls", lambda cost: median(sum(turn.values()) for turn in cost.calls) if cost.calls else math.nan, 1
    ),
    Figure("worker's instructions", lambda cost: _of_works(cost.workers, lambda work: work.instructions)),
    Figure("worker's system calls", lambda cost: _of_works(cost.workers, lambda work: work.system_calls), 1),
)


class Instructions:
    """A server under valgrind, with its workers."""

    def __init__(self, server: Server, file: Path) -> None:
        assert server.process is not None
        self.server = server
        self._counters = [Counter(pid, file) for pid in process_tree(server.process.pid)]
        for counter in self._counters:
            counter.begin()

    def measure(self, row: Row, turns: int, cost: Cost) -> None:
        """Raises CountFailed, OSError, RuntimeError."""
        with bursts(self.server, row) as asking:
            asking.ask(math.ceil(WARMING_REQUESTS / row.concurrency))
            idle = self._during(lambda: time.sleep(IDLE_SECONDS))
            times = bursts_of(row)
            for _ in range(turns):
                found = self._during(lambda: asking.ask(times))
                own, *others = [
                    each.without(rest) / (times * row.concurrency) for each, rest in zip(found, idle, strict=True)
                ]
                cost.server.append(own)
                if others:
                    cost.workers.append(sum(others[1:], others[0]))

    def _during(self, work: Callable[[], object]) -> list[Work]:
        began: list[float] = []
        for counter in reversed(self._counters):
            counter.zero()
            began.insert(0, time.monotonic())
        work()
        found = []
        for counter, start in zip(self._counters, began, strict=True):
            instructions, system_calls = counter.dump()
            found.append(Work(instructions, system_calls, time.monotonic() - start))
        return found


def bursts_of(row: Row) -> int:
    return math.ceil(REQUESTS[row.model] / row.concurrency)


def measure_calls(server: Server, meter: CallMeter, row: Row, turns: int, cost: Cost) -> None:
    """Raises OSError, RuntimeError, ValueError."""
    with bursts(server, row) as asking:
        asking.ask(math.ceil(WARMING_REQUESTS / row.concurrency))
        idle = meter.during(lambda: time.sleep(IDLE_SECONDS))
        times = bursts_of(row)
        for _ in range(turns):
            found = meter.during(lambda: asking.ask(times))
            share = found.seconds / idle.seconds
            rest = {function: float(calls) for function, calls in found.by_function.items()}
            for function, calls in idle.by_function.items():
                rest[function] = rest.get(function, 0.0) - calls * share
            cost.calls.append({function: calls / (times * row.concurrency) for function, calls in rest.items()})


@dataclass(frozen=True, slots=True)
class Counted:
    """The two servers of one checkout in one mode, one for instructions and one for calls."""

    title: str
    instructions: Instructions
    server: Server
    meter: CallMeter


def start(peer: Peer, title: str, stack: ExitStack, number: int, folder: Path = DEFAULT_FOLDER) -> Counted:
    """Raises PeerError, CountFailed."""
    folder.mkdir(exist_ok=True)
    file, calls = folder / f"request-instructions-{number}", folder / f"request-calls-{number}.json"
    log = folder / f"request-instructions-{number}.log"
    log.write_bytes(b"")
    forget(file)
    plain = replace(scripted(peer, calls), environment={**peer.environment, "PYTHONHASHSEED": "0"})
    slow = Server(
        counted(scripted(peer, calls), file, with_workers=peer.name == OURS), log, ready_seconds=READY_SECONDS
    )
    quick = Server(plain, log)
    for server in (slow, quick):
        stack.callback(server.stop)
        server.start()
        check(server)
    assert quick.process is not None
    return Counted(title, Instructions(slow, file), quick, CallMeter(quick.process, calls))


def measure(servers: Sequence[Counted], rows: Sequence[Row], turns: int) -> dict[Row, list[Cost]]:
    """All rows on all servers, in turns; what fails is told and left out."""
    costs = {row: [Cost() for _ in servers] for row in rows}
    for row in rows:
        for each, cost in zip(servers, costs[row], strict=True):
            try:
                each.instructions.measure(row, turns, cost)
                measure_calls(each.server, each.meter, row, turns, cost)
            except (CountFailed, OSError, RuntimeError, ValueError) as error:
                print(f"{row.label}, {each.title}: {error}", file=sys.stderr, flush=True)
            else:
                figures = [f"{figure.of(cost):,.{figure.digits}f} {figure.name}" for figure in FIGURES]
                print(f"{row.label}, {each.title}: {', '.join(figures)}", file=sys.stderr, flush=True)
    return costs


def report(costs: Mapping[Row, Sequence[Cost]]) -> str:
    """The figures of all servers, and how many times that of the first the last one's is."""
    figures = [
        figure for figure in FIGURES if any(not math.isnan(figure.of(cost)) for each in costs.values() for cost in each)
    ]
    count = max(map(len, costs.values()), default=1)
    header = ["row"]
    for figure in figures:
        header += [figure.name] if count == 1 else [figure.name, *["then"] * (count - 2), "last", "ratio"]
    lines = []
    for row, each in costs.items():
        line = [row.label]
        for figure in figures:
            found = [figure.of(cost) for cost in each]
            line += [NOT_MEASURED if math.isnan(value) else f"{value:,.{figure.digits}f}" for value in found]
            if count > 1:
                ratio = found[-1] / found[0] if found[0] else math.nan
                line.append(NOT_MEASURED if math.isnan(ratio) else f"{ratio:.3f}")
        lines.append(line)
    return table(header, lines, text_columns=1)


def functions(row: Row, costs: Sequence[Cost], most: int) -> str:
    """Which calls the first and the last server differ in, most of all; with one server, which it makes."""
    first, last = costs[0], costs[-1]
    names = {function for cost in (first, last) for turn in cost.calls for function in turn}
    found = [(first.call(name), last.call(name), name) for name in names]
    if len(costs) == 1:
        found.sort(key=lambda each: -each[1])
    else:
        found.sort(key=lambda each: -abs(each[1] - each[0]))
    lines = [[name, f"{one:.2f}", f"{other:.2f}", f"{other - one:+.2f}"] for one, other, name in found[:most]]
    return f"{row.label}\n\n{table(['function', 'first', 'last', 'difference'], lines, text_columns=1)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.request_instructions",
        description="Count what a request costs in instructions, system calls and Python calls.",
    )
    add_select(parser)
    parser.add_argument("--in-process", action="store_true", help="the models in the server's loop")
    parser.add_argument("--worker", action="store_true", help="the models in workers; the default is both, one by one")
    parser.add_argument(
        "--source", action="append", type=Path, metavar="FOLDER", help="another checkout's server; repeatable"
    )
    parser.add_argument(
        "--turns", type=int, default=TURNS, help="of each row; their median counts (default %(default)s)"
    )
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="print N functions of each row")
    options = parser.parse_args(arguments)
    rows = selected(parser, options.select)
    sources = [source.resolve() for source in options.source or [SOURCE]]
    modes = [OURS_IN_PROCESS] * options.in_process + [OURS] * options.worker or [OURS_IN_PROCESS, OURS]
    try:
        if not is_possible():
            raise CountFailed(ADVICE)
        for mode in modes:
            with ExitStack() as stack:
                servers: list[Counted] = []
                for source in sources:
                    peer = our_server(source)
                    if mode == OURS_IN_PROCESS:
                        peer = in_process(peer, DEFAULT_FOLDER)
                    servers.append(start(peer, f"{mode} {source}", stack, len(servers)))
                costs = measure(servers, rows, options.turns)
            print(f"{mode}\n\n{report(costs)}\n", flush=True)
            for row, each in costs.items() if options.functions else ():
                print(functions(row, each, options.functions), flush=True)
    except (PeerError, CountFailed) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
