"""Every check of a request against its model's configuration, with its text."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from actors.scheduling.request_check import BATCH_NOTE, RequestChecker
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, LaidOutTensor, Tensor
from repository.model_config import ModelConfig, ModelInput, ModelOutput, ModelParameter
from tests.sliced import finished

BATCHING = ModelConfig(
    name="m",
    max_batch_size=4,
    input=(
        ModelInput(name="A", data_type=DataType.FP32, dims=(-1, 2)),
        ModelInput(name="B", data_type=DataType.INT32, dims=(1,)),
    ),
    output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(2,)),),
)
PLAIN = ModelConfig(
    name="p",
    input=(
        ModelInput(name="TEXT", data_type=DataType.BYTES, dims=(-1,)),
        ModelInput(name="MAYBE", data_type=DataType.FP32, dims=(1,), optional=True),
    ),
    output=(ModelOutput(name="OUT", data_type=DataType.BYTES, dims=(-1,)),),
)


def fp32(name: str, *shape: int) -> Tensor:
    return Tensor.from_numpy(name, np.zeros(shape, np.float32))


def int32(name: str, *shape: int) -> Tensor:
    return Tensor.from_numpy(name, np.zeros(shape, np.int32))


def raw(name: str, datatype: DataType, shape: tuple[int, ...], data: bytes) -> Tensor:
    return Tensor(name, datatype, shape, data)


def text(data: bytes, *shape: int) -> Tensor:
    return raw("TEXT", DataType.BYTES, shape, data)


ID = "[request id: <id_unknown>] "
REFUSED: dict[str, tuple[ModelConfig, list[Tensor], str]] = {
    "missing": (
        BATCHING,
        [fp32("A", 1, 3, 2)],
        ID + "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing required input(s) "
        "['B']. Please provide all required input(s).",
    ),
    "missing where some are optional": (
        PLAIN,
        [],
        ID + "expected number of inputs between 1 and 2 but got 0 inputs for model 'p'. Got input(s) [], but missing "
        "required input(s) ['TEXT']. Please provide all required input(s).",
    ),
    "unknown": (BATCHING, [fp32("A", 1, 3, 2), int32("X", 1, 1)], "unexpected inference input 'X' for model 'm'"),
    "twice": (
        BATCHING,
        [fp32("A", 1, 3, 2), fp32("A", 1, 3, 2), int32("B", 1, 1)],
        ID + "input 'A' already exists in request",
    ),
    "no batch dimension": (
        BATCHING,
        [raw("A", DataType.FP32, (), b"1234"), int32("B", 1, 1)],
        ID + "input 'A' has no shape but model requires batch dimension for 'm'",
    ),
    "batch sizes differ": (
        BATCHING,
        [fp32("A", 1, 3, 2), int32("B", 2, 1)],
        ID + "input 'B' batch size does not match other inputs for 'm': expected 1, got 2",
    ),
    "batch over the maximum": (
        BATCHING,
        [fp32("A", 5, 3, 2), int32("B", 5, 1)],
        ID + "inference request batch-size must be <= 4 for 'm', got 5",
    ),
    "empty batch": (
        BATCHING,
        [fp32("A", 0, 3, 2), int32("B", 0, 1)],
        ID + "inference request batch-size must be >= 1 for 'm', got 0",
    ),
    "datatype": (
        BATCHING,
        [fp32("A", 1, 3, 2), fp32("B", 1, 1)],
        ID + "inference input 'B' data-type is 'FP32', but model 'm' expects 'INT32'",
    ),
    "negative dimension": (
        BATCHING,
        [raw("A", DataType.FP32, (1, -1, 2), b""), int32("B", 1, 1)],
        ID + "All input dimensions should be specified for input 'A' for model 'm', got [1,-1,2]",
    ),
    "fixed dimension": (
        BATCHING,
        [fp32("A", 1, 3, 3), int32("B", 1, 1)],
        ID + f"unexpected shape for input 'A' for model 'm'. Expected [-1,-1,2], got [1,3,3]. {BATCH_NOTE}",
    ),
    "rank": (
        PLAIN,
        [text(b"", 0, 1)],
        ID + "unexpected shape for input 'TEXT' for model 'p'. Expected [-1], got [0,1].",
    ),
    "too few bytes": (
        BATCHING,
        [raw("A", DataType.FP32, (1, 1, 2), b"1234567"), int32("B", 1, 1)],
        ID + "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 7",
    ),
    "text: length cut off": (
        PLAIN,
        [text(b"\x01\x00", 1)],
        ID + "incomplete string length indicator for inference input 'TEXT' for model 'p', expecting 4 bytes but only "
        "2 bytes available. Please make sure the string length indicator is in one buffer.",
    ),
    "text: past the end": (
        PLAIN,
        [text(b"\x09\x00\x00\x00ab", 1)],
        ID + "incomplete string data for inference input 'TEXT' for model 'p', expecting string of length 9 but only "
        "2 bytes available",
    ),
    "text: too many": (
        PLAIN,
        [text(bytes(8), 1)],
        ID + "unexpected number of string elements 2 for inference input 'TEXT' for model 'p', expecting 1",
    ),
    "text: too few": (
        PLAIN,
        [text(bytes(4), 2)],
        ID + "expected 2 string elements for inference input 'TEXT' for model 'p', got 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_request_is_refused_with_what_was_expected(case: tuple[ModelConfig, list[Tensor], str]) -> None:
    config, inputs, message = case
    with pytest.raises(InvalidArgument) as caught:
        RequestChecker(config).check(InferenceRequest(config.name, inputs))
    assert caught.value.message == message


def test_an_unknown_output_is_refused_and_the_request_id_is_named() -> None:
    checker = RequestChecker(BATCHING)
    with pytest.raises(InvalidArgument, match="unexpected inference output 'X' for model 'm'"):
        checker.check(InferenceRequest("m", [], requested_outputs=("X",)))
    with pytest.raises(InvalidArgument, match=r"\[request id: r7\] expected 2 inputs"):
        checker.check(InferenceRequest("m", [], id="r7"))


def test_inputs_come_into_the_configurations_order_with_batch_size_and_shape_key() -> None:
    request = InferenceRequest("m", [int32("B", 3, 1), fp32("A", 3, 7, 2)])
    checked = RequestChecker(BATCHING).check(request)
    assert [tensor.name for tensor in request.inputs] == ["A", "B"]
    assert checked.batch_size == 3
    assert checked.shape_key == ((7, 2), (1,))


def test_an_absent_optional_input_is_part_of_the_key() -> None:
    checker = RequestChecker(PLAIN)
    both = checker.check(InferenceRequest("p", [text(b"", 0), fp32("MAYBE", 1)]))
    one = checker.check(InferenceRequest("p", [text(b"", 0)]))
    assert both.shape_key == ((0,), (1,))
    assert one.shape_key == ((0,), None)
    assert both.batch_size == one.batch_size == 1


def test_fixed_shapes_need_no_key() -> None:
    config = ModelConfig(name="f", input=(ModelInput(name="A", data_type=DataType.FP32, dims=(2,)),))
    assert RequestChecker(config).check(InferenceRequest("f", [fp32("A", 2)])).shape_key is None


def test_ragged_inputs_keep_no_requests_apart() -> None:
    ragged = ModelInput(name="A", data_type=DataType.FP32, dims=(-1,), allow_ragged_batch=True)
    plain = ModelInput(name="B", data_type=DataType.INT32, dims=(-1,))
    alone = RequestChecker(ModelConfig(name="r", max_batch_size=4, input=(ragged,)))
    assert alone.check(InferenceRequest("r", [fp32("A", 1, 5)])).shape_key is None
    both = RequestChecker(ModelConfig(name="r", max_batch_size=4, input=(ragged, plain)))
    keys = [
        both.check(InferenceRequest("r", [fp32("A", 1, a), int32("B", 1, b)])).shape_key
        for a, b in ((5, 2), (7, 2), (5, 3))
    ]
    assert keys[0] == keys[1] != keys[2]


def test_shapes_that_are_padded_to_the_same_have_one_key() -> None:
    rules = '{"inputs": {"A": {"dims": {"0": {"buckets": [4, 8]}}}}}'
    config = replace(BATCHING, parameters={"shape_rules": ModelParameter(string_value=rules)})
    checker = RequestChecker(config)
    keys = [
        checker.check(InferenceRequest("m", [fp32("A", 1, length, 2), int32("B", 1, 1)])).shape_key
        for length in (1, 4, 5)
    ]
    assert keys == [((4, 2), (1,)), ((4, 2), (1,)), ((8, 2), (1,))]
    with pytest.raises(InvalidArgument) as caught:
        checker.check(InferenceRequest("m", [fp32("A", 1, 9, 2), int32("B", 1, 1)], id="r7"))
    assert caught.value.message == (
        "[request id: r7] dimension 0 of input 'A' is 9, but the shape rules of its model allow at most 8 (model 'm')"
    )


class TestForms:
    def test_one_of_a_known_form_is_found_to_be_what_the_first_was(self) -> None:
        checker, template = RequestChecker(BATCHING), object()
        first = InferenceRequest("m", [fp32("A", 2, 3, 2), int32("B", 2, 1)], template=template)
        second = InferenceRequest("m", [fp32("A", 2, 3, 2), int32("B", 2, 1)], template=template)
        assert checker.check(second) is not checker.check(InferenceRequest("m", list(second.inputs)))
        assert checker.check(first) is checker.check(second)
        assert checker.check(first).batch_size == 2
        assert checker.check(first).shape_key == ((3, 2), (1,))

    def test_a_refused_one_is_refused_each_time(self) -> None:
        checker, template = RequestChecker(BATCHING), object()
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="missing required input"):
                checker.check(InferenceRequest("m", [fp32("A", 2, 3, 2)], template=template))

    def test_inputs_in_another_order_are_sorted_each_time(self) -> None:
        checker, template = RequestChecker(BATCHING), object()
        for _ in range(2):
            request = InferenceRequest("m", [int32("B", 2, 1), fp32("A", 2, 3, 2)], template=template)
            checker.check(request)
            assert [tensor.name for tensor in request.inputs] == ["A", "B"]

    def test_elements_of_bytes_are_looked_at_each_time(self) -> None:
        checker, template = RequestChecker(PLAIN), object()
        checker.check(InferenceRequest("p", [text(b"\x01\0\0\0a", 1)], template=template))
        with pytest.raises(InvalidArgument, match="incomplete string data"):
            checker.check(InferenceRequest("p", [text(b"\x02\0\0\0a", 1)], template=template))

    def test_more_forms_than_are_kept(self) -> None:
        checker = RequestChecker(BATCHING)
        for rows in (1, 2, 3) * 300:
            request = InferenceRequest("m", [fp32("A", rows, 3, 2), int32("B", rows, 1)], template=object())
            assert checker.check(request).batch_size == rows
        assert len(checker._known) <= 256


MANY = 5000
LONG_TEXTS = {
    "right": bytes(4 * MANY),
    "one more": bytes(4 * MANY + 4),
    "one less": bytes(4 * MANY - 4),
    "an element cut off": bytes(4 * MANY - 4) + b"\x02\0\0\0a",
    "a length cut off": bytes(4 * MANY - 4) + b"\0\0",
}


def refusal(checker: RequestChecker, request: InferenceRequest) -> str:
    try:
        checker.check(request)
    except InvalidArgument as error:
        return error.message
    return ""


class TestLongTexts:
    @pytest.mark.parametrize("data", LONG_TEXTS.values(), ids=LONG_TEXTS)
    def test_who_has_looked_at_them_in_slices_finds_the_same(self, data: bytes) -> None:
        checker = RequestChecker(PLAIN)
        alone = refusal(checker, InferenceRequest("p", [text(data, MANY)]))
        request = InferenceRequest("p", [text(data, MANY)])
        assert checker.has_long_texts(request)
        assert sum(1 for _ in checker.look_at_texts(request)) >= MANY // 256
        assert not checker.has_long_texts(request)
        assert refusal(checker, request) == alone
        assert request.inputs[0].as_numpy().size if not alone else "element" in alone or "string" in alone

    def test_what_is_wrong_before_them_is_told_first(self) -> None:
        checker = RequestChecker(PLAIN)
        request = InferenceRequest("p", [text(b"\0" * 4 * MANY + b"x", MANY, 1)])
        finished(checker.look_at_texts(request))
        with pytest.raises(InvalidArgument, match="unexpected shape"):
            checker.check(request)

    def test_others_are_none(self) -> None:
        checker = RequestChecker(PLAIN)
        for tensor in (
            text(bytes(8), 2),
            text(bytes(40_000), 1),  # more elements than its shape has, of which no more are looked at
            raw("MAYBE", DataType.BYTES, (MANY,), bytes(4 * MANY)),
            LaidOutTensor("TEXT", DataType.BYTES, (MANY,), bytes(4 * MANY)),
        ):
            assert not checker.has_long_texts(InferenceRequest("p", [tensor]))
        assert not RequestChecker(BATCHING).has_long_texts(InferenceRequest("m", [text(bytes(4 * MANY), MANY)]))


SHAPES = ModelConfig(
    name="m",
    max_batch_size=4,
    input=(
        ModelInput(name="SIZES", data_type=DataType.INT32, dims=(2,), is_shape_tensor=True),
        ModelInput(name="X", data_type=DataType.FP32, dims=(3,)),
    ),
)


def sizes(*values: int) -> Tensor:
    return Tensor.from_numpy("SIZES", np.array(values, np.int32))


def test_a_shape_tensor_has_no_batch_and_its_values_are_part_of_the_key() -> None:
    checker, template = RequestChecker(SHAPES), object()
    checked = [
        checker.check(InferenceRequest("m", [sizes(*values), fp32("X", rows, 3)], template=template))
        for rows, values in ((3, (5, 6)), (1, (5, 6)), (1, (6, 5)))
    ]
    assert [each.batch_size for each in checked] == [3, 1, 1]
    assert checked[0].shape_key == checked[1].shape_key
    assert checked[1].shape_key != checked[2].shape_key


def test_a_shape_tensor_with_a_batch_dimension_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        RequestChecker(SHAPES).check(InferenceRequest("m", [int32("SIZES", 1, 2), fp32("X", 1, 3)]))
    assert caught.value.message == f"{ID}unexpected shape for input 'SIZES' for model 'm'. Expected [2], got [1,2]."


class Calling:
    """A model that calls another one."""

    def begin_wait(self, target: object) -> None: ...

    def end_wait(self, target: object) -> None: ...


def test_an_output_may_be_requested_once() -> None:
    """By a client; a model that calls another one may repeat itself."""
    checker = RequestChecker(BATCHING)
    request = InferenceRequest("m", [fp32("A", 1, 3, 2), int32("B", 1, 1)], requested_outputs=("OUT", "OUT"), id="7")
    with pytest.raises(InvalidArgument) as raised:
        checker.check(request)
    assert str(raised.value) == "[request id: 7] output 'OUT' is requested more than once for model 'm'"
    request.caller = Calling()
    assert checker.check(request).batch_size == 1
