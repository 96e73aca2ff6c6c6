"""The state of one ensemble request: what becomes known, what can run, what is skipped and what is let go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from actors.ensemble.graph import EnsembleGraph, Node
from actors.ensemble.state import EnsembleState, Iteration, Ready
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor
from repository.model_config import ModelConfig
from tests.actors.ensemble.ensembles import ensemble_config, model_config, request, step, vector

M = model_config("m")
P = model_config("p", ["I", "J?"])
TEST = model_config("test", ["I"], ["C:BOOL"])
D = model_config("d", decoupled=True)


class Run:
    """A request's state, and what can run of it by the steps' indexes."""

    def __init__(self, config: ModelConfig, composing: Sequence[ModelConfig], asked: InferenceRequest) -> None:
        self.graph = EnsembleGraph(config, composing)
        self.state = EnsembleState(self.graph.plan(asked.requested_outputs), asked)
        self.ready: list[Ready] = self.state.begin(self.graph.inputs)

    def indexes(self) -> list[int]:
        """Of the steps that can run; -1 for the response."""
        return sorted(-1 if node.step is None else node.step.index for _, node in self.ready)

    def take(self, index: int, iteration: Iteration | None = None) -> tuple[Iteration, Node]:
        found = next(
            each
            for each in self.ready
            if each[1].step is not None and each[1].step.index == index and iteration in (None, each[0])
        )
        self.ready.remove(found)
        return found

    def run(self, index: int, iteration: Iteration | None = None, **outputs: object) -> None:
        where, node = self.take(index, iteration)
        self.ready += self.state.complete(where, node, made(**outputs))

    def respond(self, index: int, iteration: Iteration | None = None, **outputs: object) -> Iteration:
        """A response of a decoupled step, which stays ready for more."""
        where, node = self.take(index, iteration)
        self.ready.append((where, node))
        child = self.state.new_child(where)
        self.ready += self.state.begin_child(child, node, made(**outputs))
        return child

    def response(self, iteration: Iteration | None = None) -> dict[str, float]:
        where = next(each[0] for each in self.ready if each[1].step is None and iteration in (None, each[0]))
        return {tensor.name: float(tensor.as_numpy()[0]) for tensor in self.state.response_outputs(where)}


def made(**outputs: object) -> dict[str, Tensor]:
    return {
        name: Tensor.from_numpy(name, np.array([value]) if isinstance(value, bool) else vector(value))  # type: ignore[arg-type]  # numbers
        for name, value in outputs.items()
    }


CHAIN = ensemble_config(step("m", "I=A", "O=OUT"), step("m", "I=IN", "O=A"))


def test_a_step_runs_when_its_inputs_exist() -> None:
    run = Run(CHAIN, [M, M], request(IN=1))
    assert run.indexes() == [1]
    run.run(1, O=2)
    assert run.indexes() == [0]
    run.run(0, O=3)
    assert run.response() == {"OUT": 3}


def test_tensors_are_handed_over_without_copies_and_let_go_when_read() -> None:
    run = Run(CHAIN, [M, M], request(IN=1))
    where, node = run.take(1)
    tensor = made(O=2)["O"]
    run.ready += run.state.complete(where, node, {"O": tensor})
    assert where.held_bytes == 4
    _, reader = run.ready[0]
    (taken,) = run.state.step_inputs(where, reader)
    assert taken.data is tensor.data
    assert taken.name == "I"
    run.run(0, O=3)
    assert where.held_bytes == 4, "the output alone"
    assert not any(value is tensor for value in where.tensors.values())


OPTIONAL = ensemble_config(step("p", "I=IN J=MORE", "O=OUT"), inputs=["IN", "MORE?"])


def test_an_optional_input_that_the_client_leaves_out_is_left_out_of_the_step() -> None:
    for asked, names in ((request(IN=1), ["I"]), (request(IN=1, MORE=2), ["I", "J"])):
        run = Run(OPTIONAL, [P], asked)
        assert [tensor.name for tensor in run.state.step_inputs(*run.ready[0])] == names


def test_a_required_input_that_is_missing_is_a_deadlock() -> None:
    config = ensemble_config(step("m", "I=MORE", "O=OUT"), inputs=["MORE?"])
    run = Run(config, [M], request("7"))
    assert run.indexes() == [-1]
    with pytest.raises(InvalidArgument) as caught:
        run.response()
    assert caught.value.message == (
        "[request id: 7] unexpected deadlock, at least one output is not set while no more ensemble steps can be made: "
        "output 'OUT' is missing"
    )


def test_an_output_that_the_model_does_not_give_is_missing() -> None:
    run = Run(CHAIN, [M, M], request(IN=1))
    run.run(1)
    assert run.indexes() == [-1]
    with pytest.raises(InvalidArgument, match="unexpected deadlock"):
        run.response()


BRANCH = ensemble_config(
    step("m", "I=IN", "O=A"),
    step("m", "I=A", "O=B"),
    step("p", "I=IN J=B", "O=OUT"),
    inputs=["IN", "C:BOOL"],
    outputs=["OUT", "A"],
    parameters={"condition:0": "C"},
)


def test_a_branch_whose_condition_holds_runs() -> None:
    run = Run(BRANCH, [M, M, P], request(IN=1, C=True))
    run.run(0, O=2)
    run.run(1, O=3)
    assert [tensor.name for tensor in run.state.step_inputs(*run.ready[0])] == ["I", "J"]
    run.run(2, O=4)
    assert run.response() == {"OUT": 4, "A": 2}


def test_a_branch_whose_condition_does_not_hold_is_skipped_and_its_outputs_are_absent() -> None:
    run = Run(BRANCH, [M, M, P], request(IN=1, C=False))
    assert run.indexes() == [2]
    assert [tensor.name for tensor in run.state.step_inputs(*run.ready[0])] == ["I"]
    run.run(2, O=4)
    assert run.response() == {"OUT": 4}


JOIN = ensemble_config(
    step("test", "I=IN", "C=C"),
    step("m", "I=IN", "O=T"),
    step("m", "I=IN", "O=U"),
    step("m", "I=U", "O=T"),
    step("m", "I=T", "O=OUT"),
    parameters={"condition:1": "C", "condition:2": "!C"},
)


@pytest.mark.parametrize(("value", "branch"), [(True, [1]), (False, [2, 3])])
def test_branches_that_write_the_same_tensor_join(value: bool, branch: list[int]) -> None:
    run = Run(JOIN, [TEST, M, M, M, M], request(IN=1))
    assert run.indexes() == [0]
    run.run(0, C=value)
    for index in branch:
        assert run.indexes() == [index]
        run.run(index, O=index)
    run.run(4, O=9)
    assert run.response() == {"OUT": 9}


def test_a_tensor_that_no_branch_writes_is_absent() -> None:
    """The condition that chooses a branch is itself skipped, so neither branch runs."""
    config = ensemble_config(
        step("test", "I=IN", "C=C"),
        step("m", "I=IN", "O=OUT"),
        step("m", "I=IN", "O=OUT"),
        inputs=["IN", "D:BOOL"],
        parameters={"condition:0": "D", "condition:1": "C", "condition:2": "!C"},
    )
    run = Run(config, [TEST, M, M], request(IN=1, D=False))
    assert run.indexes() == [-1]
    assert run.response() == {}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([True, False, True], "condition 'C' must be all true or all false in one request, but it has 2 true of 3"),
        ([], "condition 'C' must be all true or all false in one request, but it has no element (step 0, model 'm')"),
    ],
)
def test_a_condition_that_is_neither_true_nor_false(value: list[bool], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Run(BRANCH, [M, M, P], request(IN=1, C=np.array(value, np.bool_)))
    assert caught.value.message.startswith(message)


def test_skipped_counts_more_than_missing_whichever_is_known_first() -> None:
    for order in ((0, 1), (1, 0)):
        config = ensemble_config(
            step("m", "I=IN", "O=A"),
            step("test", "I=IN", "C=C"),
            step("q", "I=A", "O=OUT"),
            step("m", "I=IN", "O=MORE"),
            outputs=["OUT", "MORE"],
            parameters={"condition:2": "C"},
        )
        run = Run(config, [M, TEST, model_config("q"), M], request(IN=1))
        for index in order:
            if index:
                run.run(index, C=False)
            else:
                run.run(index)
        run.run(3, O=1)
        assert run.response() == {"MORE": 1}


STREAM = ensemble_config(
    step("d", "I=IN", "O=A"), step("p", "I=A J=SIDE", "O=OUT"), step("m", "I=IN", "O=SIDE"), outputs=["OUT", "A"]
)


def test_each_response_begins_an_iteration_that_sees_what_is_around_it() -> None:
    run = Run(STREAM, [D, P, M], request(IN=1))
    assert run.indexes() == [0, 2]
    first = run.respond(0, O=10)
    assert run.indexes() == [0, 2], "an outer tensor is not known yet"
    run.run(2, O=5)
    assert run.indexes() == [0, 1]
    second = run.respond(0, O=20)
    assert run.indexes() == [0, 1, 1]
    for iteration, value in ((second, 20), (first, 10)):
        where, node = run.take(1, iteration)
        assert [float(t.as_numpy()[0]) for t in run.state.step_inputs(where, node)] == [value, 5]
        run.ready += run.state.complete(where, node, made(O=value + 1))
        assert run.response(iteration) == {"OUT": value + 1, "A": value}
    run.state.close(first)
    assert run.state.root.children == {second}


def test_a_decoupled_step_that_is_skipped_leaves_its_iteration_barren() -> None:
    config = ensemble_config(
        step("d", "I=IN", "O=A"),
        step("test", "I=A", "C=C"),
        step("d", "I=A", "O=OUT"),
        parameters={"condition:2": "C"},
    )
    run = Run(config, [D, TEST, D], request(IN=1))
    first, second = run.respond(0, O=1), run.respond(0, O=2)
    run.run(1, first, C=False)
    assert run.state.take_barren() == [first]
    assert run.state.take_barren() == []
    run.run(1, second, C=True)
    assert run.indexes() == [0, 2]
    inner = run.respond(2, second, O=7)
    assert inner.depth == 2
    assert run.response(inner) == {"OUT": 7}


def test_a_decoupled_step_that_cannot_run_is_a_deadlock_at_once() -> None:
    config = ensemble_config(step("d", "I=MORE", "O=OUT"), inputs=["MORE?"])
    with pytest.raises(InvalidArgument, match="tensor 'MORE' of step 0, model 'd', is missing"):
        Run(config, [D], request())


def test_what_comes_for_a_closed_iteration_has_no_effect() -> None:
    run = Run(STREAM, [D, P, M], request(IN=1))
    first = run.respond(0, O=10)
    run.run(2, O=5)
    where, node = run.take(1, first)
    run.state.close(first)
    assert run.state.complete(where, node, made(O=1)) == []
