"""Stage 2 of auto-completion, and the final comparison of configuration and model."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.completion import TensorSignature, adopt_completion, check_against_model, complete_from_model
from repository.model_config import (
    InstanceKind,
    ModelConfig,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelSequenceBatching,
    ModelTensorReshape,
    ModelTransactionPolicy,
)

FP32 = DataType.FP32
EMPTY_RESHAPE = ModelTensorReshape()


def tensor(name: str, *shape: int, optional: bool = False) -> TensorSignature:
    return TensorSignature(name, FP32, shape, optional)


def config_of(
    inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]] | None = None, max_batch_size: int = 0
) -> ModelConfig:
    """Model `m` with FP32 tensors of these dims."""
    return ModelConfig(
        name="m",
        max_batch_size=max_batch_size,
        input=tuple(ModelInput(name=name, data_type=FP32, dims=dims) for name, dims in inputs.items()),
        output=tuple(ModelOutput(name=name, data_type=FP32, dims=dims) for name, dims in (outputs or {}).items()),
    )


class TestCompleteFromModel:
    def test_a_model_that_can_batch_becomes_batched(self, caplog: pytest.LogCaptureFixture) -> None:
        """Said, but no warning: it is what was asked for."""
        with caplog.at_level(logging.INFO):
            completed = complete_from_model(
                ModelConfig(name="m"), inputs=[tensor("IN", -1, 3, -1)], outputs=[tensor("OUT", -1, 2)]
            )
        assert completed == msgspec.structs.replace(
            config_of({"IN": (3, -1)}, {"OUT": (2,)}, max_batch_size=4), dynamic_batching=ModelDynamicBatching()
        )
        (record,) = caplog.records
        assert "autofilled max_batch_size to 4 for model 'm' since batching is supported" in record.getMessage()
        assert record.levelno == logging.INFO

    def test_a_model_that_cannot_batch_keeps_its_whole_shapes(self) -> None:
        completed = complete_from_model(
            ModelConfig(name="m"), inputs=[tensor("IN", -1, 3), tensor("N")], outputs=[tensor("OUT", 2)]
        )
        assert completed == config_of({"IN": (-1, 3), "N": (1,)}, {"OUT": (2,)})

    @pytest.mark.parametrize("fixed", ["input", "output"])
    def test_one_fixed_first_dimension_rules_batching_out(self, fixed: str) -> None:
        shapes = {"input": (-1, 2), "output": (-1, 2), fixed: (1, 2)}
        completed = complete_from_model(
            ModelConfig(name="m"), inputs=[tensor("IN", *shapes["input"])], outputs=[tensor("OUT", *shapes["output"])]
        )
        assert completed.max_batch_size == 0
        assert completed.dynamic_batching is None

    def test_a_scalar_per_row_is_one_element_reshaped_away(self) -> None:
        completed = complete_from_model(ModelConfig(name="m"), inputs=[tensor("IN", -1)], outputs=[tensor("OUT", -1)])
        assert completed.input == (ModelInput(name="IN", data_type=FP32, dims=(1,), reshape=EMPTY_RESHAPE),)
        assert completed.output == (ModelOutput(name="OUT", data_type=FP32, dims=(1,), reshape=EMPTY_RESHAPE),)

    def test_a_given_max_batch_size_stays(self) -> None:
        completed = complete_from_model(
            ModelConfig(name="m", max_batch_size=16), inputs=[tensor("IN", -1, 1)], outputs=[tensor("OUT", -1, 1)]
        )
        assert completed.max_batch_size == 16

    @pytest.mark.parametrize(
        ("given", "default", "expected"),
        [
            (ModelConfig(), 1, None),
            (ModelConfig(max_batch_size=1), 4, None),
            (ModelConfig(), 0, None),
            (ModelConfig(), 2, ModelDynamicBatching()),
            (
                ModelConfig(dynamic_batching=ModelDynamicBatching(preserve_ordering=True)),
                4,
                ModelDynamicBatching(preserve_ordering=True),
            ),
            (ModelConfig(sequence_batching=ModelSequenceBatching()), 4, None),
        ],
    )
    def test_dynamic_batching_is_added_to_batches_of_more_than_one(
        self, given: ModelConfig, default: int, expected: ModelDynamicBatching | None
    ) -> None:
        completed = complete_from_model(
            given, inputs=[tensor("IN", -1)], outputs=[tensor("OUT", -1)], default_max_batch_size=default
        )
        assert completed.dynamic_batching == expected

    def test_a_default_of_zero_leaves_the_model_without_batches(self) -> None:
        completed = complete_from_model(
            ModelConfig(name="m"), inputs=[tensor("IN", -1, 2)], outputs=[tensor("OUT", -1)], default_max_batch_size=0
        )
        assert completed == config_of({"IN": (-1, 2)}, {"OUT": (-1,)})

    def test_both_lists_given_leave_the_configuration_untouched(self, caplog: pytest.LogCaptureFixture) -> None:
        given = config_of({"IN": (2,)}, {"OUT": (2,)})
        with caplog.at_level(logging.INFO):
            assert complete_from_model(given, inputs=[tensor("X", -1)], outputs=[tensor("Y", -1)]) is given
        assert "skipping model configuration auto-complete for 'm': inputs and outputs already specified" in caplog.text

    def test_a_given_list_stays_and_the_other_is_filled(self) -> None:
        given = config_of({"IN": (7,)})
        completed = complete_from_model(given, inputs=[tensor("IN", -1, 2)], outputs=[tensor("OUT", -1, 2)])
        assert completed.input == given.input
        assert completed.output == config_of({}, {"OUT": (2,)}).output
        assert completed.max_batch_size == 4

    def test_optional_inputs_are_left_to_the_configuration(self) -> None:
        completed = complete_from_model(
            ModelConfig(name="m"),
            inputs=[tensor("IN", -1, 2), tensor("WEIGHT", 5, optional=True)],
            outputs=[tensor("OUT", -1)],
        )
        assert [model_input.name for model_input in completed.input] == ["IN"]
        assert completed.max_batch_size == 4

    def test_max_batch_size_for_a_model_that_cannot_batch_is_an_error(self) -> None:
        with pytest.raises(InvalidArgument) as caught:
            complete_from_model(
                ModelConfig(name="m", max_batch_size=8), inputs=[tensor("IN", 2)], outputs=[tensor("OUT", -1)]
            )
        assert caught.value.message == (
            "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
        )

    @settings(deadline=None)
    @given(
        st.lists(st.lists(st.sampled_from([-1, 1, 3]), max_size=3), min_size=1, max_size=3),
        st.lists(st.lists(st.sampled_from([-1, 1, 3]), max_size=3), max_size=3),
    )
    def test_what_is_completed_agrees_with_the_model(self, inputs: list[list[int]], outputs: list[list[int]]) -> None:
        signatures = [tensor(f"I{index}", *shape) for index, shape in enumerate(inputs)]
        results = [tensor(f"O{index}", *shape) for index, shape in enumerate(outputs)]
        completed = complete_from_model(ModelConfig(name="m"), inputs=signatures, outputs=results)
        check_against_model(completed, signatures, results)


BATCH_RULE = (
    "for the model to support batching the shape should have at least 1 dimension and the first dimension must be -1; "
    "but shape expected by the model is"
)
WHOLE = (
    "dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
    "complete shape"
)


class TestCheckAgainstModel:
    @pytest.mark.parametrize(
        ("config", "inputs", "outputs"),
        [
            (config_of({"I": (2, 3)}, {"O": (4,)}), [tensor("I", 2, 3)], [tensor("O", 4)]),
            (config_of({"I": (2,)}, {"O": (4,)}, 8), [tensor("I", -1, 2)], [tensor("O", -1, 4)]),
            # A variable dimension of an input takes any value, also the batch dimension of a model without batching.
            (config_of({"I": (7, -1)}), [tensor("I", -1, -1)], []),
            # Outputs may be left out, and so may inputs with a value of their own.
            (config_of({"I": (1,)}), [tensor("I", 1), tensor("W", 5, optional=True)], [tensor("O", 4)]),
            (config_of({"I": (1,), "W": (5,)}), [tensor("I", 1), tensor("W", 5, optional=True)], []),
            (config_of({"I": (1, 1)}, {"O": (1,)}), [tensor("I")], [tensor("O")]),
            (
                ModelConfig(
                    max_batch_size=2,
                    input=(ModelInput(name="I", data_type=FP32, dims=(4,), reshape=ModelTensorReshape((2, 2))),),
                ),
                [tensor("I", -1, 2, 2)],
                [],
            ),
            (
                ModelConfig(input=(ModelInput(name="W", data_type=FP32, dims=(5,), optional=True),)),
                [tensor("W", 5, optional=True)],
                [],
            ),
        ],
    )
    def test_agrees(self, config: ModelConfig, inputs: list[TensorSignature], outputs: list[TensorSignature]) -> None:
        check_against_model(config, inputs, outputs)

    @pytest.mark.parametrize(
        ("config", "inputs", "outputs", "message"),
        [
            (
                config_of({"X": (1,)}),
                [tensor("b", 1), tensor("a", 1)],
                [],
                "unexpected inference input 'X', allowed inputs are: a, b",
            ),
            (
                config_of({}, {"X": (1,)}),
                [],
                [tensor("b", 1), tensor("a", 1)],
                "unexpected inference output 'X', allowed outputs are: a, b",
            ),
            (
                config_of({"I": (1,)}),
                [tensor("I", 1), tensor("J", 1)],
                [],
                "unable to load model 'm', configuration expects 1 inputs, model provides 2",
            ),
            (
                msgspec.structs.replace(config_of({}), input=(ModelInput(name="I"), ModelInput(name="I"))),
                [tensor("I", 1)],
                [],
                "unable to load model 'm', configuration expects 2 inputs, model provides 1",
            ),
            (
                config_of({"I": (1,)}),
                [TensorSignature("I", DataType.INT64, (1,))],
                [],
                "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'I', model provides "
                "TYPE_INT64",
            ),
            (
                config_of({}, {"O": (1,)}),
                [],
                [TensorSignature("O", DataType.BYTES, (1,))],
                "unable to load model 'm', configuration expects datatype TYPE_FP32 for output 'O', model provides "
                "TYPE_STRING",
            ),
            (config_of({"I": (4,)}, None, 8), [tensor("I", 1, 4)], [], f"model 'm', tensor 'I': {BATCH_RULE} [1,4]"),
            (config_of({"I": (1,)}, None, 8), [tensor("I")], [], f"model 'm', tensor 'I': {BATCH_RULE} []"),
            (
                config_of({"I": (-1, 4)}, None, 8),
                [tensor("I", -1, 4)],
                [],
                "model 'm', tensor 'I': the model expects 2 dimensions (shape [-1,4]) but the model configuration "
                f"specifies 3 {WHOLE} [-1,-1,4])",
            ),
            (
                config_of({"I": (5,)}),
                [tensor("I", 4)],
                [],
                "model 'm', tensor 'I': the model expects 1 dimensions (shape [4]) but the model configuration "
                "specifies 1 dimensions (shape [5])",
            ),
            (
                config_of({"I": (-1,)}),
                [tensor("I", 4)],
                [],
                "model 'm', tensor 'I': the model expects 1 dimensions (shape [4]) but the model configuration "
                "specifies 1 dimensions (shape [-1])",
            ),
            (
                config_of({}, {"O": (4,)}),
                [],
                [tensor("O", -1)],
                "model 'm', tensor 'O': the model expects 1 dimensions (shape [-1]) but the model configuration "
                "specifies 1 dimensions (shape [4])",
            ),
            (
                config_of({"I": (2,)}),
                [tensor("I")],
                [],
                "unable to load model 'm', scalar tensor 'I', should only provide 1 in the model configuration when "
                "the model doesn't support batching. Model configuration provided: [2].",
            ),
            (
                ModelConfig(name="m", input=(ModelInput(name="I", data_type=FP32, dims=(1,), optional=True),)),
                [tensor("I", 1)],
                [],
                "'optional' is set to true for input 'I' while the backend model doesn't support optional input",
            ),
            (
                ModelConfig(
                    name="m",
                    max_batch_size=1,
                    input=(ModelInput(name="I", data_type=FP32, dims=(1,), optional=True),),
                ),
                [tensor("I", -1, 1, optional=True)],
                [],
                "unable to load model 'm', optional input 'I' is not supported for models that support batching",
            ),
            (
                ModelConfig(
                    name="m",
                    input=(ModelInput(name="I", data_type=FP32, dims=(1,), optional=True, allow_ragged_batch=True),),
                ),
                [tensor("I", -1, optional=True)],
                [],
                "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged "
                "input 'I', which is not supported for optional input",
            ),
        ],
    )
    def test_disagrees(
        self, config: ModelConfig, inputs: list[TensorSignature], outputs: list[TensorSignature], message: str
    ) -> None:
        with pytest.raises(InvalidArgument) as caught:
            check_against_model(config, inputs, outputs)
        assert caught.value.message == message


class TestAdoptCompletion:
    def test_takes_what_a_backend_may_set_and_nothing_else(self) -> None:
        given = ModelConfig(name="m", backend="python", instance_group=(ModelInstanceGroup(count=2),))
        completed = msgspec.structs.replace(
            config_of({"I": (1,)}, {"O": (1,)}, 8),
            name="other",
            backend="other",
            instance_group=(ModelInstanceGroup(kind=InstanceKind.GPU),),
            dynamic_batching=ModelDynamicBatching(),
            model_transaction_policy=ModelTransactionPolicy(decoupled=True),
        )
        assert adopt_completion(given, completed) == msgspec.structs.replace(
            completed, name="m", backend="python", instance_group=(ModelInstanceGroup(count=2),)
        )

    @pytest.mark.parametrize(
        "given",
        [
            ModelConfig(dynamic_batching=ModelDynamicBatching(preserve_ordering=True)),
            ModelConfig(sequence_batching=ModelSequenceBatching()),
            ModelConfig(ensemble_scheduling=ModelEnsembling()),
        ],
    )
    def test_a_scheduling_choice_stays(self, given: ModelConfig) -> None:
        assert adopt_completion(given, ModelConfig(dynamic_batching=ModelDynamicBatching())) == given

    def test_a_transaction_policy_is_not_taken_away(self) -> None:
        given = ModelConfig(model_transaction_policy=ModelTransactionPolicy())
        assert adopt_completion(given, ModelConfig()) == given
