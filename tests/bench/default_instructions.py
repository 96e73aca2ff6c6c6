"""What the metrics and logs that are on by default cost a request, in instructions of the processor:
`python -m tests.bench.default_instructions`. Needs valgrind (`apt-get install valgrind`).

Times of two servers differ by more than these cost, but the same requests take nearly the same instructions each time.
Counted are those of the server's process, with the model in it and one request in flight: with the defaults, without
each, and without all. What the server does by itself meanwhile is counted before, and taken off.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import tritonclient.grpc
import tritonclient.http

from tests.bench.callgrind import ADVICE, READY_SECONDS, Counter, CountFailed, counted, forget, is_possible
from tests.bench.check import small_inputs
from tests.bench.default_cost import OFF
from tests.bench.goals import DEFAULT_COST_LIMIT, at_most
from tests.bench.peers import Peer, PeerError, Server, in_process, our_server
from tests.bench.prepare import DEFAULT_FOLDER
from tests.bench.rows import Port
from tests.bench.table import table

WARMING_REQUESTS = 200
IDLE_SECONDS = 5.0
TURNS = 3
REQUESTS = 500
PORTS: tuple[Port, ...] = ("http", "grpc")

# What is left out of the defaults; the last leaves out all.
WITHOUT = (
    ("histograms", ("--metrics-config=histogram_latencies=false",)),
    ("metrics", tuple(flag for flag in OFF if "metrics" in flag)),
    ("logs", tuple(flag for flag in OFF if "log" in flag)),
    ("metrics and logs", OFF),
)


@dataclass(frozen=True, slots=True)
class InstructionCost:
    """Instructions of a request, with the defaults and without something that is one of them."""

    port: Port
    without: str
    defaults: float
    rest: float

    @property
    def percent(self) -> float:
        return 100 * (self.defaults / self.rest - 1)


@contextmanager
def asking(server: Server, port: Port) -> Iterator[Callable[[int], None]]:
    """Gives a call that sends so many requests, one after the other."""
    flavour = tritonclient.http if port == "http" else tritonclient.grpc
    inputs = small_inputs(flavour)
    with flavour.InferenceServerClient(server.address(port)) as client:

        def ask(times: int) -> None:
            for _ in range(times):
                client.infer("add_sub", inputs)

        yield ask


def count(peer: Peer, requests: int, folder: Path = DEFAULT_FOLDER) -> dict[Port, float]:
    """Instructions of a request. Raises PeerError, CountFailed."""
    folder.mkdir(exist_ok=True)
    file, log = folder / "instructions", folder / "default-instructions.log"
    forget(file)
    server = Server(counted(peer, file), log, ready_seconds=READY_SECONDS)
    found: dict[Port, float] = {}
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start()
        assert server.process is not None
        counter = Counter(server.process.pid, file)
        calls = {port: stack.enter_context(asking(server, port)) for port in PORTS}
        counter.begin()
        for ask in calls.values():
            ask(WARMING_REQUESTS)
        idle = counter.during(lambda: time.sleep(IDLE_SECONDS))
        for port, ask in calls.items():
            turns = [counter.during(lambda ask=ask: ask(requests)) for _ in range(TURNS)]  # type: ignore[misc]
            found[port] = min(turn.without(idle).instructions for turn in turns) / requests
    return found


def measure(requests: int = REQUESTS, folder: Path = DEFAULT_FOLDER) -> list[InstructionCost]:
    """Raises as `count`."""
    peer = in_process(our_server(), folder)
    defaults = count(peer, requests, folder)
    costs = []
    for name, flags in WITHOUT:
        rest = count(replace(peer, command=(*peer.command, *flags)), requests, folder)
        costs += [InstructionCost(port, name, defaults[port], rest[port]) for port in PORTS]
    return sorted(costs, key=lambda cost: PORTS.index(cost.port))


def report(costs: Sequence[InstructionCost]) -> str:
    header = ["protocol", "without", "instructions, defaults", "without it", "cost %", "goal"]
    lines = []
    for cost in costs:
        figures = [f"{cost.defaults:,.0f}", f"{cost.rest:,.0f}", f"{cost.percent:.1f}"]
        lines.append([cost.port, cost.without, *figures, at_most(cost.percent, DEFAULT_COST_LIMIT)])
    return table(header, lines, text_columns=2)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.default_instructions",
        description="Count the instructions that the metrics and logs of the defaults cost.",
    )
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each turn (default %(default)s)")
    options = parser.parse_args(arguments)
    try:
        if not is_possible():
            raise CountFailed(ADVICE)
        print(report(measure(options.requests)))
    except (PeerError, CountFailed) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
