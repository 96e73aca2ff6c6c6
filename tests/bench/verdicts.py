"""The tables that say whether the goals are met: row by row, and of the server as such. Part of `report`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.contest import Ratio, Results
from tests.bench.goals import GOALS, SIZE_LIMIT, TAIL_CONCURRENCY, TAIL_LIMIT, at_least, at_most
from tests.bench.memory import Memory
from tests.bench.peers import OURS, OURS_IN_PROCESS, THEIRS
from tests.bench.rows import Protocol, Row
from tests.bench.table import NOT_MEASURED, table

MODES = {OURS: "worker", OURS_IN_PROCESS: "in process"}
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of one server besides its answers."""

    title: str
    version: str
    numpy_version: str
    seconds_to_ready: float  # median over its starts
    starts: int
    idle: Memory
    loaded: Memory | None  # after the last turn; None where the server had ended by then


def ratio_table(results: Results, rows: Sequence[Row]) -> str:
    """Ours over NVIDIA's, and the goals of the row."""
    header = ["row", "worker", "range", "goal", "in process", "range", "goal", "p50 worker", "goal"]
    lines = []
    for row in rows:
        goal = GOALS.get(row)
        worker = results.throughput_ratio(row, OURS, THEIRS)
        in_process = results.throughput_ratio(row, OURS_IN_PROCESS, THEIRS)
        p50 = results.p50_ratio(row, OURS, THEIRS)
        line = [row.label, *_ratio(worker), at_least(_median(worker), goal.worker if goal else None)]
        line += [*_ratio(in_process), at_least(_median(in_process), goal.in_process if goal else None)]
        line += [_figure(_median(p50)), at_most(_median(p50), goal.p50 if goal else None)]
        lines.append(line)
    return table(header, lines, text_columns=1)


def _median(ratio: Ratio | None) -> float | None:
    return None if ratio is None else ratio.median


def _ratio(ratio: Ratio | None) -> list[str]:
    """The median, and the range where there is more than one round."""
    if ratio is None:
        return [NOT_MEASURED, NOT_MEASURED]
    extremes = f"{ratio.least:.2f} to {ratio.most:.2f}" if ratio.rounds > 1 else NOT_MEASURED
    return [_figure(ratio.median), extremes]


def _figure(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f}"


def promise_table(results: Results, servers: Mapping[str, ServerFacts]) -> str:
    """What else our server is held to, in both modes."""
    header = ["", *(cell for mode in MODES.values() for cell in (mode, "goal"))]
    lines = [
        _line(f"p99 over p50, add_sub/{protocol}/{TAIL_CONCURRENCY}", TAIL_LIMIT, _tail_of(results, protocol))
        for protocol in PROTOCOLS
    ]
    lines += [
        _line(
            f"processor time of a request, add_sub/{protocol}, 64 in flight over 1", 1.0, _growth_of(results, protocol)
        )
        for protocol in PROTOCOLS
    ]
    lines += [
        _line("idle RSS over NVIDIA's", SIZE_LIMIT, _against(servers, lambda facts: facts.idle.resident)),
        _line("idle PSS over NVIDIA's", SIZE_LIMIT, _against(servers, lambda facts: facts.idle.proportional)),
        _line("time to ready over NVIDIA's", SIZE_LIMIT, _against(servers, lambda facts: facts.seconds_to_ready)),
    ]
    return table(header, lines, text_columns=1)


def _line(what: str, limit: float, figure_of: Callable[[str], float | None]) -> list[str]:
    figures = [figure_of(mode) for mode in MODES]
    return [what, *(cell for figure in figures for cell in (_figure(figure), at_most(figure, limit)))]


def _tail_of(results: Results, protocol: Protocol) -> Callable[[str], float | None]:
    def tail(server: str) -> float | None:
        typical = results.typical(Row("add_sub", protocol, TAIL_CONCURRENCY), server)
        return None if typical is None else typical.p99 / typical.p50

    return tail


def _growth_of(results: Results, protocol: Protocol) -> Callable[[str], float | None]:
    """At most 1 where the processor time of all requests grows less than linearly with their number."""

    def growth(server: str) -> float | None:
        many, one = (results.typical(Row("add_sub", protocol, concurrency), server) for concurrency in (64, 1))
        if many is None or one is None or many.processor is None or not one.processor:
            return None
        return many.processor / one.processor

    return growth


def _against(servers: Mapping[str, ServerFacts], size: Callable[[ServerFacts], float]) -> Callable[[str], float | None]:
    def ratio(server: str) -> float | None:
        if server not in servers or THEIRS not in servers or not (theirs := size(servers[THEIRS])):
            return None
        return size(servers[server]) / theirs

    return ratio
