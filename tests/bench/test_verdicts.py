"""Whether the goals are met: the cells of both tables."""

from __future__ import annotations

from tests.bench.contest import Failure, Outcome, Results, Turn
from tests.bench.goals import GOALS, at_least, at_most
from tests.bench.measurement import Measurement
from tests.bench.memory import Memory
from tests.bench.peers import OURS, OURS_IN_PROCESS, THEIRS
from tests.bench.rows import ROWS, Row
from tests.bench.verdicts import ServerFacts, promise_table, ratio_table

HTTP_1, HTTP_4, HTTP_64 = (Row("add_sub", "http", concurrency) for concurrency in (1, 4, 64))


def results_of(row: Row, results: Results, **by_server: list[Outcome]) -> Results:
    names = {"worker": OURS, "in_process": OURS_IN_PROCESS, "theirs": THEIRS}
    for server, outcomes in by_server.items():
        for number, outcome in enumerate(outcomes):
            results.add(Turn(number, row, names[server]), outcome)
    return results


def cells(table: str, line: int) -> list[str]:
    return [cell.strip() for cell in table.splitlines()[2 + line].strip("|").split("|")]


def test_each_goal_is_met_at_its_value() -> None:
    assert (at_least(1.2, 1.2), at_least(1.19, 1.2)) == ("≥ 1.20 met", "≥ 1.20 not met")
    assert (at_most(0.8, 0.8), at_most(0.81, 0.8)) == ("≤ 0.80 met", "≤ 0.80 not met")
    assert (at_least(None, 1.2), at_most(1.0, None)) == ("≥ 1.20", "-")


def test_goals_are_of_rows_that_are_measured() -> None:
    """Four in flight, the step between, is measured and held to nothing."""
    assert set(ROWS) - set(GOALS) == {Row("add_sub", "http", 4), Row("add_sub", "grpc", 4)}
    assert set(GOALS) <= set(ROWS)


def test_a_line_has_each_ratio_beside_its_goal() -> None:
    results = results_of(
        HTTP_1,
        Results(),
        worker=[Measurement(120, 70, 90), Measurement(140, 90, 90)],
        in_process=[Measurement(150, 70, 90), Failure("refused")],
        theirs=[Measurement(100, 100, 100), Measurement(100, 100, 100)],
    )
    assert cells(ratio_table(results, [HTTP_1]), 0) == [
        "add_sub/http/1",
        *("1.30", "1.20 to 1.40", "≥ 1.20 met"),
        *("1.50", "-", "≥ 1.70 not met"),
        *("0.80", "≤ 0.80 met"),
    ]


def test_what_was_not_measured_meets_nothing() -> None:
    results = results_of(HTTP_4, Results(), worker=[Measurement(120, 70, 90)])
    table = ratio_table(results, [HTTP_4, HTTP_1])
    assert cells(table, 0) == ["add_sub/http/4", *["-"] * 8]
    assert cells(table, 1) == ["add_sub/http/1", "-", "-", "≥ 1.20", "-", "-", "≥ 1.70", "-", "≤ 0.80"]


def facts(seconds: float, resident: int, proportional: int) -> ServerFacts:
    return ServerFacts("a server", "1.0", "2.0", seconds, 3, Memory(2, resident, proportional), None)


def test_the_other_promises() -> None:
    results = results_of(HTTP_64, Results(), worker=[Measurement(9000, 100, 401, 120)])
    results_of(HTTP_1, results, worker=[Measurement(2000, 100, 200, 400)])
    servers = {OURS: facts(3.0, 140, 100), OURS_IN_PROCESS: facts(1.5, 80, 60), THEIRS: facts(1.5, 100, 50)}
    table = promise_table(results, servers)
    assert [cells(table, line)[1:] for line in (0, 2, 4, 5, 6)] == [
        ["4.01", "≤ 4.00 not met", "-", "≤ 4.00"],
        ["0.30", "≤ 1.00 met", "-", "≤ 1.00"],
        ["1.40", "≤ 1.50 met", "0.80", "≤ 1.50 met"],
        ["2.00", "≤ 1.50 not met", "1.20", "≤ 1.50 met"],
        ["2.00", "≤ 1.50 not met", "1.00", "≤ 1.50 met"],
    ]


def test_a_server_that_was_not_there_is_held_to_nothing() -> None:
    table = promise_table(Results(), {OURS: facts(3.0, 140, 100)})
    assert all(cells(table, line)[1::2] == ["-", "-"] for line in range(7))
