"""The tables of a run and their place in the page."""

from __future__ import annotations

import pytest

from tests.bench.__main__ import PAGE
from tests.bench.contest import Failure, Outcome, Results, Turn
from tests.bench.machine import Machine
from tests.bench.measurement import Measurement
from tests.bench.memory import Memory
from tests.bench.peers import OURS, THEIRS
from tests.bench.report import BEGIN, END, Run, render, replace_results
from tests.bench.rows import Row
from tests.bench.table import table
from tests.bench.verdicts import ServerFacts

MACHINE = Machine("2031-02-03", "Some CPU", 2, "Linux 6.1", "3.11.7", 0.25)
SMALL = Row("add_sub", "http", 1)
MIB = 1024 * 1024
NAMES = {"ours": OURS, "theirs": THEIRS}


def facts(title: str, loaded: Memory | None = None) -> ServerFacts:
    return ServerFacts(title, "1.0", "2.0.1", 1.234, 3, Memory(2, 100 * MIB, 80 * MIB), loaded)


def run_of(*, incidents: tuple[str, ...] = (), **by_server: list[Outcome]) -> Run:
    results = Results()
    for name, outcomes in by_server.items():
        for number, outcome in enumerate(outcomes):
            results.add(Turn(number, SMALL, NAMES[name]), outcome)
    servers = {NAMES[name]: facts(name.title(), Memory(2, 150 * MIB, 90 * MIB)) for name in by_server}
    return Run(MACHINE, [SMALL], servers, results, 2, 2500, "2.41", 12.34, incidents)


def cells(report: str, *first: str) -> list[str]:
    """The cells of the only table line that starts with these."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in report.splitlines() if line[:1] == "|"]
    (line,) = [line for line in lines if line[: len(first)] == list(first)]
    return line


def test_each_row_holds_the_figures_of_each_server() -> None:
    ours: list[Outcome] = [Measurement(2000, 450, 900, 300), Measurement(3000, 550, 1100, 400)]
    report = render(run_of(ours=ours, theirs=[Measurement(1000, 1000, 2000)]))
    assert cells(report, "add_sub/http/1", "Ours")[2:] == ["2,500", "0.50", "1.00", "350"]
    assert cells(report, "add_sub/http/1", "Theirs")[2:] == ["1,000", "1.00", "2.00", "-"]


def test_two_servers_are_compared_and_one_alone_is_not() -> None:
    measured: list[Outcome] = [Measurement(1000, 1000, 2000)]
    report = render(run_of(ours=measured, theirs=measured))
    assert cells(report, "add_sub/http/1", "1.00")[3] == "≥ 1.20 not met"
    assert "met" not in render(run_of(theirs=measured))


def test_a_row_that_failed_in_every_round_says_so_with_the_reasons() -> None:
    report = render(run_of(ours=[Failure("timed out"), Failure("refused")], theirs=[Measurement(1000, 1, 2)]))
    assert cells(report, "add_sub/http/1", "Ours")[2:] == ["failed", "-", "-", "-"]
    assert cells(report, "add_sub/http/1", "-")[2:4] == ["-", "≥ 1.20"]
    assert "add_sub/http/1, Ours: 2 of 2 turns failed: timed out; refused" in report


def test_a_row_that_failed_once_is_marked_and_noted() -> None:
    report = render(run_of(ours=[Failure("refused"), Measurement(500, 1, 2)], theirs=[Measurement(1000, 1, 2)]))
    assert cells(report, "add_sub/http/1", "Ours")[2] == "500*"
    assert "1 of 2 turns failed: refused" in report


def test_a_row_never_reached_is_not_called_failed() -> None:
    assert cells(render(run_of(ours=[], theirs=[])), "add_sub/http/1", "Ours")[2:] == ["-", "-", "-", "-"]


def test_memory_and_time_to_ready_have_a_table_of_their_own() -> None:
    assert cells(render(run_of(ours=[])), "Ours") == ["Ours", "1.23", "2", "100", "80", "150"]


def test_the_conditions_are_named() -> None:
    conditions = render(run_of(ours=[], theirs=[])).splitlines()[0]
    for fact in ("2031-02-03", "Some CPU", "2 cores", "Linux 6.1", "Ours 1.0 (numpy 2.0.1)", "Python 3.11.7", "2.41"):
        assert fact in conditions
    assert "2 rounds, each of 3 windows of 2500 ms" in conditions


def test_incidents_are_told() -> None:
    assert render(run_of(incidents=("Ours ended with exit code -9",), ours=[])).endswith(
        "- Ours ended with exit code -9"
    )


def test_a_table_is_padded_and_aligned() -> None:
    assert table(["name", "n"], [["a", "1"], ["b|c", "10,000"]], text_columns=1).splitlines() == [
        "| name |      n |",
        "| ---- | -----: |",
        "| a    |      1 |",
        r"| b\|c | 10,000 |",
    ]


def test_only_what_is_between_the_markers_is_replaced() -> None:
    page = f"before\n{BEGIN}\n\nold\n\n{END}\nafter\n"
    replaced = replace_results(page, "new")
    assert replaced == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert replace_results(replaced, "new") == replaced


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="results: begin"):
        replace_results(page, "new")


def test_the_project_s_page_has_its_markers() -> None:
    assert "new figures" in replace_results(PAGE.read_text(), "new figures")
