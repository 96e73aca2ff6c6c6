"""Graphs and plans: which steps a set of outputs needs, and how tensors go through ports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from actors.ensemble.graph import MAX_KEPT_PLANS, EnsembleGraph, Plan, Port
from protocol.messages import Tensor
from tests.actors.ensemble.ensembles import ensemble_config, model_config, step

M = model_config("m")
P = model_config("p", ["I", "J"], ["O", "Q"])
D = model_config("d", decoupled=True)


def models(plan: Plan) -> list[str]:
    """The models of a plan's steps, in order."""
    return [node.step.model_name for node in plan.nodes if node.step is not None]


def diamond() -> EnsembleGraph:
    """IN → m → A; A, IN → p → B, C; B → n → OUT; C → MORE by q."""
    config = ensemble_config(
        step("n", "I=B", "O=OUT"),
        step("p", "I=A J=IN", "O=B Q=C"),
        step("m", "I=IN", "O=A"),
        step("q", "I=C", "O=MORE"),
        outputs=["OUT", "MORE", "A"],
    )
    return EnsembleGraph(config, [model_config("n"), P, M, model_config("q")])


@pytest.mark.parametrize(
    ("requested", "steps"),
    [
        ((), ["m", "p", "n", "q"]),
        (("OUT", "MORE", "A"), ["m", "p", "n", "q"]),
        (("OUT",), ["m", "p", "n"]),
        (("MORE",), ["m", "p", "q"]),
        (("A",), ["m"]),
    ],
)
def test_steps_that_are_not_needed_are_left_out(requested: Sequence[str], steps: list[str]) -> None:
    plan = diamond().plan(requested)
    assert sorted(models(plan)) == sorted(steps)
    order = models(plan)
    assert order.index("m") == 0
    assert all(order.index("p") < order.index(after) for after in ("n", "q") if after in order)
    assert [port.name for port in plan.outputs] == [
        name for name in ("OUT", "MORE", "A") if name in (requested or "OUT MORE A")
    ]


def test_a_model_is_asked_only_for_outputs_that_are_needed() -> None:
    graph = diamond()
    assert [node.requested_outputs for node in graph.plan(()).nodes if node.step and node.step.model_name == "p"] == [
        ()
    ]
    assert [n.requested_outputs for n in graph.plan(["MORE"]).nodes if n.step and n.step.model_name == "p"] == [("Q",)]


def test_what_is_read_last_by_a_step_is_let_go_and_what_is_an_output_is_not() -> None:
    assert dict(diamond().plan(()).uses) == {"IN": 2, "B": 1, "C": 1}
    assert dict(diamond().plan(["OUT"]).uses) == {"IN": 2, "A": 1, "B": 1}


def test_plans_are_kept_and_bounded() -> None:
    graph = diamond()
    assert graph.plan(["OUT", "A"]) is graph.plan(["A", "OUT"])
    assert graph.plan(()) is graph.plan(())
    for _ in range(2):
        for name in ("OUT", "MORE", "A"):
            graph.plan([name])
    assert len(graph._plans) <= MAX_KEPT_PLANS


@pytest.mark.parametrize(
    ("steps", "composing", "is_parallel"),
    [
        ([step("m", "I=IN", "O=OUT")], [M], False),
        ([step("m", "I=T", "O=OUT"), step("m", "I=IN", "O=T")], [M, M], False),
        ([step("m", "I=IN", "O=A"), step("m", "I=A", "O=B"), step("p", "I=A J=B", "O=OUT")], [M, M, P], False),
        ([step("m", "I=IN", "O=A"), step("m", "I=IN", "O=B"), step("p", "I=A J=B", "O=OUT")], [M, M, P], True),
        ([step("d", "I=IN", "O=OUT")], [D], True),
    ],
)
def test_only_a_chain_needs_no_tasks_of_its_own(steps: list[str], composing: list[object], is_parallel: bool) -> None:
    graph = EnsembleGraph(ensemble_config(*steps), composing)  # type: ignore[arg-type]  # a list of configurations
    assert graph.plan(()).is_parallel is is_parallel


def test_depths() -> None:
    config = ensemble_config(
        step("d", "I=IN", "O=A"), step("p", "I=A J=IN", "O=B"), step("d", "I=B", "O=C"), outputs=["C", "A"]
    )
    graph = EnsembleGraph(config, [D, P, D])
    whole, outer = graph.plan(()), graph.plan(["A"])
    assert (whole.depth, outer.depth) == (2, 1)
    assert [node.depth for node in whole.nodes] == [0, 1, 1, 2]
    assert [node.outer for node in whole.nodes] == [(), ("IN",), (), ("A",)]
    assert models(outer) == ["d"]
    assert "A" not in whole.uses, "an inner iteration reads it"


@pytest.mark.parametrize(
    ("rank", "is_batching", "shape", "expected"),
    [
        (2, True, (3, 4), (3, 4)),
        (2, True, (4,), (1, 4)),
        (1, False, (1, 4), (4,)),
        (1, False, (3, 4), (3, 4)),  # a batch of three: the model will refuse it
        (1, False, (4,), (4,)),
        (3, True, (4,), (4,)),
    ],
)
def test_a_port_adds_and_takes_away_the_batch_dimension(
    rank: int, is_batching: bool, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    given = Tensor.from_numpy("T", np.zeros(shape, np.float32))
    adapted = Port("I", "T", rank, is_batching).adapt(given)
    assert (adapted.name, adapted.shape, adapted.datatype) == ("I", expected, given.datatype)
    assert adapted.data is given.data
