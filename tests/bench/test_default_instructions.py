"""Counting the instructions of the defaults: what is left out, and the table."""

from __future__ import annotations

from tests.bench.default_instructions import WITHOUT, InstructionCost, report


def test_what_is_left_out_is_part_of_all() -> None:
    *some, (_, everything) = WITHOUT
    assert all(flags and set(flags) <= set(everything) for _, flags in some)


def test_the_cost_is_of_a_request_without_it() -> None:
    costs = [InstructionCost("http", "logs", 1010.0, 1000.0), InstructionCost("grpc", "metrics", 1050.0, 1000.0)]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in report(costs).splitlines()[2:]]
    assert lines == [
        ["http", "logs", "1,010", "1,000", "1.0", "≤ 3.00 met"],
        ["grpc", "metrics", "1,050", "1,000", "5.0", "≤ 3.00 not met"],
    ]
