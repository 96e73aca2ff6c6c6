"""The rules between an ensemble and the models of its steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from actors.ensemble.validation import check_composition, decoupled_chains
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig, ModelTransactionPolicy
from tests.actors.ensemble.ensembles import ensemble_config, model_config, step

M = model_config("m")
ONE = step("m", "I=IN", "O=OUT")
TWO = (step("m", "I=IN", "O=T"), step("n", "I=T", "O=OUT"))


@pytest.mark.parametrize(
    ("ensemble", "composing", "message"),
    [
        (
            ensemble_config(step("m", "I=IN J=IN", "O=OUT")),
            [M],
            "in ensemble e, ensemble tensor IN is mapping to non-existing input J in model m",
        ),
        (
            ensemble_config(ONE),
            [model_config("m", ["I", "J"])],
            "in ensemble e, input J in model m is not mapped to any ensemble tensors",
        ),
        (
            ensemble_config(step("m", "I=IN", "P=OUT")),
            [M],
            "in ensemble e, ensemble tensor OUT is mapped from non-existing output P in model m",
        ),
        (
            ensemble_config(ONE, max_batch_size=8),
            [model_config("m", max_batch_size=4)],
            "ensemble e allows maximum batch size 8, but it contains model m which only allows maximum batch size to "
            "be 4",
        ),
        (
            ensemble_config(ONE, inputs=["IN:INT32"]),
            [M],
            "in ensemble e, ensemble tensor IN: inconsistent data type: TYPE_INT32 is inferred from model e while "
            "TYPE_FP32 is inferred from model m",
        ),
        (
            ensemble_config(*TWO),
            [M, model_config("n", ["I:INT64"])],
            "in ensemble e, ensemble tensor T: inconsistent data type: TYPE_FP32 is inferred from model m while "
            "TYPE_INT64 is inferred from model n",
        ),
        (
            ensemble_config(*TWO),
            [M, model_config("n", ["I:FP32:1,3"])],
            "in ensemble e, ensemble tensor T: inconsistent shape: [1] is inferred from model m while [1,3] is "
            "inferred from model n",
        ),
        (
            ensemble_config(*TWO, outputs=["OUT:FP32:7,5"]),
            [M, model_config("n", outputs=["O:FP32:-1,6"], max_batch_size=4)],
            "in ensemble e, ensemble tensor OUT: inconsistent shape: [-1,-1,6] is inferred from model n while [7,5] is "
            "inferred from model e",
        ),
        (
            ensemble_config(step("m", "I=IN", "O=OUT"), inputs=["IN", "C"], parameters={"condition:m": "C"}),
            [M],
            "in ensemble e, ensemble tensor C is a condition and must be TYPE_BOOL with one element, but it is "
            "TYPE_FP32 in model e",
        ),
        (
            ensemble_config(step("m", "I=IN", "O=OUT"), inputs=["IN", "C:BOOL:2"], parameters={"condition:m": "C"}),
            [M],
            "in ensemble e, ensemble tensor C is a condition and must be TYPE_BOOL with one element, but it has shape "
            "[2] in model e",
        ),
        (
            # Joined at first sight; but the second branch can do without the tensor that the condition holds back.
            ensemble_config(
                step("m", "I=IN", "O=A"),
                step("n", "I=A", "O=OUT"),
                step("m", "I=IN", "O=OUT"),
                inputs=["IN", "C:BOOL"],
                parameters={"condition:0": "C", "condition:2": "!C"},
            ),
            [M, model_config("n", ["I?"]), M],
            "ensemble tensor 'OUT' can appear in an output map only once for ensemble 'e' step 2, unless the "
            "conditions of the steps that write it exclude each other",
        ),
        (
            ensemble_config(step("m", "I=IN", "O=A"), step("n", "I=IN", "O=B"), step("p", "I=A J=B", "O=OUT")),
            [model_config("m", decoupled=True), model_config("n", decoupled=True), model_config("p", ["I", "J"])],
            "in ensemble e, step of model 'p' receives inputs originated from different decoupled models",
        ),
        (
            ensemble_config(step("m", "I=IN", "O=A"), step("n", "I=IN", "O=B"), outputs=["A", "B"]),
            [model_config("m", decoupled=True), model_config("n", decoupled=True)],
            "in ensemble e, outputs 'A' and 'B' originate from different decoupled models, so no response could have "
            "them both",
        ),
        (
            ensemble_config(
                step("m", "I=IN", "O=OUT"),
                step("n", "I=IN", "O=OUT"),
                inputs=["IN", "C:BOOL"],
                parameters={"condition:0": "C", "condition:1": "!C"},
            ),
            [model_config("m", decoupled=True), model_config("n")],
            "in ensemble e, ensemble tensor OUT is written by steps that receive inputs originated from different "
            "decoupled models",
        ),
        (
            ensemble_config(ONE, more="response_cache { enable: true }"),
            [model_config("m", decoupled=True)],
            "Response Cache does not currently support model e with 'decoupled' transaction policy in the model m of a "
            "step. Please disable the response cache.",
        ),
        (
            ensemble_config(ONE, more="response_cache { enable: true }"),
            [model_config("m", more="sequence_batching {}")],
            "Response Cache does not currently support model e with sequence batching scheduler in the model m of a "
            "step. Please disable the response cache.",
        ),
    ],
)
def test_broken_rules(ensemble: ModelConfig, composing: Sequence[ModelConfig], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_composition(ensemble, composing)
    assert caught.value.message == message


def test_two_outputs_into_one_tensor_name_step_and_tensor() -> None:
    """Such a configuration does not come this far by itself; the rule is judged for those that do."""
    config = ensemble_config(ONE)
    assert config.ensemble_scheduling is not None
    twice = replace(config.ensemble_scheduling.step[0], output_map={"O": "OUT", "P": "OUT"})
    config = replace(config, ensemble_scheduling=replace(config.ensemble_scheduling, step=(twice,)))
    with pytest.raises(InvalidArgument) as caught:
        check_composition(config, [model_config("m", outputs=["O", "P"])])
    assert caught.value.message == (
        "in ensemble e, multiple outputs in model m are mapped to the same ensemble tensor OUT"
    )


@pytest.mark.parametrize(
    ("ensemble", "composing"),
    [
        (ensemble_config(ONE), [M]),
        # What is optional need not be mapped; a batch dimension may be on either side; -1 fits anything.
        (ensemble_config(ONE), [model_config("m", ["I", "J?"])]),
        (ensemble_config(ONE, max_batch_size=4), [M]),
        (ensemble_config(ONE), [model_config("m", max_batch_size=4)]),
        (ensemble_config(ONE, inputs=["IN:FP32:-1,1"]), [model_config("m", max_batch_size=4)]),
        (ensemble_config(ONE, inputs=["IN:FP32:7"]), [model_config("m", ["I:FP32:-1"])]),
        (ensemble_config(ONE, max_batch_size=4), [model_config("m", max_batch_size=4)]),
        (
            ensemble_config(ONE, inputs=["IN", "C:BOOL:-1"], parameters={"condition:m": "!C"}),
            [M],
        ),
    ],
)
def test_what_fits_passes(ensemble: ModelConfig, composing: Sequence[ModelConfig]) -> None:
    """Unchanged, but that it is marked as not decoupled, as in Triton."""
    expected = replace(ensemble, model_transaction_policy=ModelTransactionPolicy(decoupled=False))
    assert check_composition(ensemble, composing) == expected


def test_an_ensemble_with_a_decoupled_step_is_decoupled() -> None:
    assert check_composition(ensemble_config(*TWO), [M, model_config("n", decoupled=True)]).is_decoupled
    assert not check_composition(ensemble_config(*TWO), [M, model_config("n")]).is_decoupled


def test_chains_grow_with_each_decoupled_step_inside_another() -> None:
    config = ensemble_config(
        step("d", "I=IN", "O=A"),
        step("m", "I=A", "O=B"),
        step("d", "I=B", "O=C"),
        step("p", "I=C J=A", "O=OUT"),
        step("m", "I=IN", "O=SIDE"),
        outputs=["OUT", "SIDE", "A"],
    )
    d, p = model_config("d", decoupled=True), model_config("p", ["I", "J"])
    of_steps, of_tensors = decoupled_chains(config, [d, M, d, p, M])
    assert of_steps == [(), (0,), (0,), (0, 2), ()]
    assert of_tensors == {"IN": (), "A": (0,), "B": (0,), "C": (0, 2), "OUT": (0, 2), "SIDE": ()}
