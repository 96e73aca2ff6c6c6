"""In which order steps can run, and which of them exclude each other."""

from __future__ import annotations

import pytest

from repository.ensemble_parameters import StepCondition
from repository.ensemble_wiring import StepWiring, clashing_writer, find_cycle, guards, running_order, wire
from repository.pbtxt import parse_pbtxt

# Whoever looks at each step for each step takes minutes for so many.
MANY = 20_000


def wired(reads: str, writes: str, condition: str = "", optional: str = "") -> StepWiring:
    """`reads` and `writes` as words; `optional` are those of `reads` that the step can do without."""
    tensor = condition.removeprefix("!")
    names = (*reads.split(), *((tensor,) if tensor else ()))
    return StepWiring(
        reads=names,
        requires=frozenset(names) - frozenset(optional.split()),
        writes=tuple(writes.split()),
        condition=StepCondition(tensor, condition.startswith("!")) if tensor else None,
    )


@pytest.mark.parametrize(
    ("steps", "order", "written"),
    [
        ([wired("IN", "A"), wired("A", "OUT")], [0, 1], {"IN", "A", "OUT"}),
        ([wired("A B", "OUT"), wired("IN", "A"), wired("A", "B")], [1, 2, 0], {"IN", "A", "B", "OUT"}),
        ([wired("IN B", "A"), wired("A", "B"), wired("IN", "C")], [2], {"IN", "C"}),
        # The condition is waited for as an input is.
        ([wired("IN", "OUT", "C"), wired("IN", "C")], [1, 0], {"IN", "C", "OUT"}),
        ([wired("IN", "C", "C")], [], {"IN"}),
        # A tensor of two steps is there when both are done.
        ([wired("T", "OUT"), wired("IN", "T"), wired("U", "T"), wired("IN", "U")], [1, 3, 2, 0], None),
    ],
)
def test_running_order(steps: list[StepWiring], order: list[int], written: set[str] | None) -> None:
    found, tensors = running_order(steps, ["IN"])
    assert found == order
    assert written is None or tensors == written


@pytest.mark.parametrize(
    ("steps", "cycle"),
    [
        ([wired("IN", "A"), wired("A", "OUT")], []),
        ([wired("IN B", "A"), wired("A", "B")], [(0, "B"), (1, "A")]),
        ([wired("IN A", "A")], [(0, "A")]),
        ([wired("IN", "C", "C")], [(0, "C")]),
        # Not those that only wait for it, and not what waits for nobody.
        ([wired("X", "OUT"), wired("Y", "X"), wired("Z IN", "Y"), wired("Y", "Z")], [(2, "Z"), (3, "Y")]),
        ([wired("NOBODY", "A"), wired("A", "OUT")], []),
        # One writer of several is enough.
        ([wired("T", "A"), wired("IN", "T", "!C"), wired("A", "T", "C"), wired("IN", "C")], [(0, "T"), (2, "A")]),
        ([wired("A B", "D"), wired("D", "A"), wired("IN", "B")], [(0, "A"), (1, "D")]),
    ],
)
def test_find_cycle(steps: list[StepWiring], cycle: list[tuple[int, str]]) -> None:
    assert find_cycle(steps, running_order(steps, ["IN"])[0]) == cycle


@pytest.mark.parametrize(
    ("steps", "clash"),
    [
        ([wired("IN", "T"), wired("IN", "U")], None),
        ([wired("IN", "T"), wired("IN", "T")], (1, "T")),
        ([wired("IN", "T", "C"), wired("IN", "T")], (1, "T")),
        ([wired("IN", "T", "C"), wired("IN", "T", "C")], (1, "T")),
        ([wired("IN", "T", "C"), wired("IN", "T", "!C")], None),
        ([wired("IN", "T", "C"), wired("IN", "T", "!D")], (1, "T")),
        # The condition of a branch's first step holds for the whole branch.
        ([wired("IN", "A", "C"), wired("A", "T"), wired("IN", "T", "!C")], None),
        ([wired("IN", "A", "C"), wired("IN A", "T", optional="A"), wired("IN", "T", "!C")], (2, "T")),
        # Three branches: the second condition is itself there on one branch only.
        ([wired("IN", "T", "C"), wired("IN", "E", "!C"), wired("IN", "T", "E"), wired("IN", "T", "!E")], None),
        ([wired("IN", "T", "C"), wired("IN", "E"), wired("IN", "T", "E"), wired("IN", "T", "!E")], (2, "T")),
        # What is joined runs in either case, so it excludes nothing.
        (
            [wired("IN", "A", "C"), wired("IN", "A", "!C"), wired("A", "T"), wired("IN", "T", "!C")],
            (3, "T"),
        ),
    ],
)
def test_clashes(steps: list[StepWiring], clash: tuple[int, str] | None) -> None:
    order, _ = running_order(steps, ["IN", "C", "D"])
    assert clashing_writer(steps, guards(steps, order)) == clash


def test_an_optional_input_is_read_and_not_required() -> None:
    config = parse_pbtxt(
        """name: "e" platform: "ensemble" parameters { key: "condition:m" value { string_value: "!C" } }
        ensemble_scheduling { step { model_name: "m" input_map [ { key: "I" value: "A" }, { key: "J" value: "B" } ]
        output_map { key: "O" value: "T" } } }""",
        source="test",
    )
    condition = StepCondition("C", is_negated=True)
    assert wire(config) == (StepWiring(("A", "B", "C"), frozenset("ABC"), ("T",), condition),)
    assert wire(config, [{"J"}]) == (StepWiring(("A", "B", "C"), frozenset("AC"), ("T",), condition),)


def test_a_long_chain_and_many_beside_each_other() -> None:
    chain = [wired(f"a{number}", f"a{number + 1}") for number in reversed(range(MANY))]
    assert running_order(chain, ["a0"])[0] == [*reversed(range(MANY))]
    beside = [wired("a", f"b{number}") for number in range(MANY)]
    assert running_order(beside, ["a"])[0] == [*range(MANY)]


def test_a_cycle_of_many() -> None:
    ring = [wired(f"a{number}", f"a{(number + 1) % MANY}") for number in range(MANY)]
    order, _ = running_order(ring, [])
    assert order == []
    assert len(find_cycle(ring, order)) == MANY
