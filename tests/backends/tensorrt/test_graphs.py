"""Which CUDA graphs are captured, and which of them serves a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.tensorrt.description import EngineDescription
from backends.tensorrt.graphs import GraphPlan, choose_graph, graph_plans
from backends.tensorrt.options import read_options
from protocol.errors import InvalidArgument
from repository.model_config import Dims
from repository.pbtxt import parse_pbtxt
from tests.backends.tensorrt.engine_models import engine, engine_tensor, rows_engine

ENGINE = rows_engine((1, 4, 32))
TWO_OPEN = engine(engine_tensor("X", (-1, -1), ((1, 1), (4, 6), (8, 16))), engine_tensor("Y", (-1, -1), output=True))


def plans_of(
    text: str, description: EngineDescription = ENGINE, profiles: tuple[int, ...] = (0,)
) -> tuple[GraphPlan, ...]:
    config = parse_pbtxt(f'name: "m" {text}', source="test")
    return graph_plans(config, read_options(config, {}).cuda, description, profiles)


def cuda(*specs: str, graphs: bool = True) -> str:
    return f"optimization {{ cuda {{ graphs: {str(graphs).lower()} {' '.join(specs)} }} }}"


def sizes(plans: tuple[GraphPlan, ...]) -> list[int]:
    return [plan.shapes["X"][0] for plan in plans]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_batch_size: 32", [1, 2, 3, 4, 6, 8, 12, 16]),
        ("max_batch_size: 5", [1, 2, 3, 4]),
        ("max_batch_size: 32 dynamic_batching { }", [1, 32]),
        ("max_batch_size: 32 dynamic_batching { preferred_batch_size: [ 16, 4 ] }", [1, 4, 16, 32]),
        ("max_batch_size: 8 sequence_batching { oldest { preferred_batch_size: 4 } }", [1, 4, 8]),
        ("max_batch_size: 8 sequence_batching { direct { } }", [1, 2, 3, 4, 6, 8]),
        ("max_batch_size: 0", [4]),  # what the profile is best at
    ],
)
def test_without_specifications_the_sizes_that_will_come(text: str, expected: list[int]) -> None:
    assert sizes(plans_of(f"{text} {cuda()}")) == expected


def test_no_graphs_without_graphs() -> None:
    assert plans_of(f"max_batch_size: 4 {cuda('graph_spec { batch_size: 2 }', graphs=False)}") == ()
    assert plans_of("max_batch_size: 4") == ()


def test_no_graphs_for_shape_tensors() -> None:
    values = engine_tensor("SHAPE", (2,), ((1, 1), (2, 2), (4, 8)), shape_tensor=True)
    assert plans_of(f"max_batch_size: 4 {cuda()}", engine(*ENGINE.tensors, values)) == ()


def test_a_profile_has_the_graphs_that_it_allows() -> None:
    description = rows_engine((1, 2, 4), (3, 8, 32))
    found = plans_of(f"max_batch_size: 16 {cuda()}", description, (0, 1))
    assert [(plan.profile, plan.shapes["X"][0]) for plan in found] == [
        (0, 1), (0, 2), (0, 3), (1, 3), (0, 4), (1, 4), (1, 6), (1, 8), (1, 12), (1, 16),
    ]  # fmt: skip


def test_an_engine_of_a_fixed_size_has_one_graph() -> None:
    fixed = engine(engine_tensor("X", (2, 4)), engine_tensor("Y", (2, 4), output=True))
    assert [plan.shapes for plan in plans_of(f"max_batch_size: 2 {cuda()}", fixed)] == [{"X": (2, 4)}]


def test_specifications_give_the_shapes() -> None:
    spec = 'graph_spec { batch_size: 2 input { key: "X" value { dim: [ 16 ] } } }'
    (plan,) = plans_of(f"max_batch_size: 8 {cuda(spec)}", TWO_OPEN)
    assert plan == GraphPlan(0, {"X": (2, 16)}, {"X": (2, 16)})
    (plan,) = plans_of(f"max_batch_size: 8 {cuda('graph_spec { batch_size: 2 }')}", TWO_OPEN)
    assert plan.shapes == {"X": (2, 6)}
    (plan,) = plans_of(f'{cuda("""graph_spec { input { key: "X" value { dim: [ 3, 5 ] } } }""")}', TWO_OPEN)
    assert plan.shapes == {"X": (3, 5)}


def test_lower_bounds_give_the_least() -> None:
    lower = 'graph_lower_bound { batch_size: 1 input { key: "X" value { dim: [ 4 ] } } }'
    spec = f'graph_spec {{ batch_size: 2 input {{ key: "X" value {{ dim: [ 16 ] }} }} {lower} }}'
    (plan,) = plans_of(f"max_batch_size: 8 {cuda(spec)}", TWO_OPEN)
    assert plan == GraphPlan(0, {"X": (2, 16)}, {"X": (1, 4)})
    (plan,) = plans_of(f"max_batch_size: 8 {cuda('graph_spec { batch_size: 4 graph_lower_bound { batch_size: 2 } }')}")
    assert (plan.shapes, plan.least) == ({"X": (4, 4)}, {"X": (2, 4)})


X16 = 'input { key: "X" value { dim: [ 16 ] } }'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (cuda("graph_spec { batch_size: 1 }"), "graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0"),
        (f"max_batch_size: 8 {cuda('graph_spec { }')}", "graph spec expects 'batch_size' to be >= 1 and <= 8"),
        (
            f"max_batch_size: 8 {cuda('graph_spec { batch_size: 9 }')}",
            "graph spec expects 'batch_size' to be >= 1 and <= 8",
        ),
        (
            f"max_batch_size: 8 {cuda('graph_spec { batch_size: 2 graph_lower_bound { batch_size: 3 } }')}",
            "graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'",
        ),
        (
            f"max_batch_size: 8 {cuda('graph_spec { batch_size: 2 graph_lower_bound { } }')}",
            "graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size' 2 and >= 1, got 0",
        ),
        (
            cuda("graph_spec { graph_lower_bound { batch_size: 1 } }"),
            "graph lower bound spec expects 'batch_size' to be 0 if 'max_batch_size' is 0",
        ),
        (
            f"max_batch_size: 8 {cuda(f'graph_spec {{ batch_size: 2 {X16} graph_lower_bound {{ batch_size: 1 }} }}')}",
            "graph lower bound spec expects shape for input 'X'",
        ),
        (
            "max_batch_size: 8 "
            + cuda(
                f"graph_spec {{ batch_size: 2 {X16} graph_lower_bound {{ batch_size: 1 "
                'input { key: "X" value { dim: [ 17 ] } } } }'
            ),
            "graph lower bound spec expects the shape for input 'X' to be <= [16], got [17]",
        ),
        (
            'max_batch_size: 8 ' + cuda('graph_spec { batch_size: 2 input { key: "Z" value { dim: [ 1 ] } } }'),
            "graph spec names the input 'Z', allowed inputs are: X",
        ),
        (
            'max_batch_size: 8 ' + cuda('graph_spec { batch_size: 2 input { key: "X" value { dim: [ 99 ] } } }'),
            "no optimization profile of 0 allows the shapes of a graph spec: X [2, 99]",
        ),
        (
            'max_batch_size: 8 ' + cuda('graph_spec { batch_size: 2 input { key: "X" value { dim: [ 2, 2 ] } } }'),
            "no optimization profile of 0 allows",
        ),
    ],
)  # fmt: skip
def test_contradictions_are_named(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        plans_of(text, TWO_OPEN)
    assert caught.value.message.startswith(says)
    assert "(model 'm')" in caught.value.message


def test_specifications_are_judged_also_where_no_graph_is_made() -> None:
    with pytest.raises(InvalidArgument, match="graph spec expects"):
        plans_of(f"max_batch_size: 8 {cuda('graph_spec { batch_size: 9 }', graphs=False)}")


DIMS = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(st.lists(st.tuples(DIMS, DIMS), max_size=5), DIMS)
def test_the_smallest_graph_that_serves_is_chosen(bounds: list[tuple[Dims, Dims]], shape: Dims) -> None:
    plans = [GraphPlan(0, {"X": tuple(map(max, a, b))}, {"X": tuple(map(min, a, b))}) for a, b in bounds]
    found = choose_graph(plans, 0, {"X": shape})
    serving = [
        plan
        for plan in plans
        if all(a <= b <= c for a, b, c in zip(plan.least["X"], shape, plan.shapes["X"], strict=True))
    ]
    assert (found is None) == (not serving)
    assert found is None or (found in serving and found.size == min(plan.size for plan in serving))
    assert choose_graph(plans, 1, {"X": shape}) is None
