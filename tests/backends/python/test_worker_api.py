"""What models get from `triton_python_backend_utils`, called here in the test's own process."""

from __future__ import annotations

import gc
import json
import re
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from backends.python.worker.trioton_worker import api as pb_utils
from backends.python.worker.trioton_worker.errors import TritonErrorCode
from backends.python.worker.trioton_worker.frames import ERROR_KINDS, LOG_LEVELS
from backends.python.worker.trioton_worker.logger import LogLevel
from protocol.datatypes import DataType
from tests.backends.python.received import received_tensor, received_tensors

NUMPY_TYPES = {t for t in DataType if t not in (DataType.INVALID, DataType.BF16)}


def test_the_tables_of_both_sides_agree() -> None:
    assert [code.name for code in TritonErrorCode] == list(ERROR_KINDS)
    assert [level.name for level in LogLevel] == list(LOG_LEVELS)
    for datatype in NUMPY_TYPES:
        kind = pb_utils.triton_string_to_numpy(datatype.value)
        assert np.dtype(kind) == datatype.dtype
        assert np.dtype(pb_utils.triton_to_numpy_type(datatype.number)) == datatype.dtype
        assert pb_utils.numpy_to_triton_type(pb_utils.triton_to_numpy_type(datatype.number)) == datatype.number
        assert pb_utils.numpy_to_triton_type(datatype.dtype) == datatype.number
        assert pb_utils.Tensor("x", np.empty(2, kind)).triton_dtype() == datatype.number


def test_types_without_a_counterpart() -> None:
    for name in ("TYPE_BF16", "FP32"):
        with pytest.raises(KeyError):
            pb_utils.triton_string_to_numpy(name)
    assert pb_utils.triton_to_numpy_type(14) is None
    assert pb_utils.numpy_to_triton_type(np.complex64) is None
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13


def test_byte_tensors_as_bytes() -> None:
    array = np.array([["é", b"\x00b"], [5, ""]], dtype=object)
    data = pb_utils.serialize_byte_tensor(array)
    assert data == b"\x02\x00\x00\x00\xc3\xa9\x02\x00\x00\x00\x00b\x01\x00\x00\x005\x00\x00\x00\x00"
    assert pb_utils.deserialize_bytes_tensor(data).tolist() == ["é".encode(), b"\x00b", b"5", b""]
    assert pb_utils.serialize_byte_tensor(np.array([], dtype=object)) == ()
    assert pb_utils.serialize_byte_tensor(np.array([1])) is None
    assert pb_utils.serialize_byte_tensor(np.array([b"ab"])) == b"\x02\x00\x00\x00ab"
    assert pb_utils.deserialize_bytes_tensor(b"").shape == (0,)
    for broken, text in ((b"\x01\x00", "incomplete length field"), (b"\x01\x00\x00\x00", "extends beyond buffer")):
        with pytest.raises(pb_utils.TritonModelException, match=f"Invalid bytes tensor data: .*{text}"):
            pb_utils.deserialize_bytes_tensor(broken)


def test_a_tensor_that_a_model_makes() -> None:
    tensor = pb_utils.Tensor("x", np.arange(6, dtype=">f4").reshape(2, 3).T)
    assert (tensor.name(), tensor.triton_dtype(), tensor.shape(), tensor.is_cpu()) == ("x", 11, [3, 2], True)
    array = tensor.as_numpy()
    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert array.flags.c_contiguous
    assert array.dtype == np.dtype(np.float32)
    assert pb_utils.Tensor("x", np.array(3)).shape() == []
    assert pb_utils.Tensor("x", np.array([b"a\x00", b"bc"])).as_numpy().tolist() == [b"a", b"bc"]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("", np.zeros(1)), pb_utils.TritonModelException, "Tensor name cannot be an empty string."),
        ((5, np.zeros(1)), TypeError, "name must be str or bytes, found type <class 'int'>"),
        (("x", [1]), TypeError, "Tensor 'x': expected a numpy.ndarray, found type <class 'list'>"),
        (("x", np.zeros(1, np.complex64)), pb_utils.TritonModelException, "NumPy dtype is not supported."),
        (("x", np.array(["text"])), pb_utils.TritonModelException, "NumPy dtype is not supported."),
    ],
)
def test_a_tensor_that_cannot_be(arguments: tuple[Any, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as failure:
        pb_utils.Tensor(*arguments)
    assert text in str(failure.value)


def test_bf16_passes_through_dlpack_only() -> None:
    source = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    made = pb_utils.Tensor("x", source)  # more than Triton takes
    again = pb_utils.Tensor.from_dlpack("y", made)
    for tensor in (made, again, pb_utils.Tensor.from_dlpack("z", again.to_dlpack())):
        assert (tensor.triton_dtype(), tensor.shape()) == (14, [2, 3])
        assert bytes(tensor._raw()) == source.tobytes()
        with pytest.raises(pb_utils.TritonModelException, match="Tensor dtype is BF16 and cannot be converted"):
            tensor.as_numpy()
    memory = np.frombuffer(bytearray(source.tobytes()), np.uint8)
    received = received_tensor("r", 14, [2, 3], memory)
    assert bytes(pb_utils.Tensor.from_dlpack("y", received)._raw()) == source.tobytes()


def test_dlpack_shares_memory_with_arrays() -> None:
    array = np.arange(4, dtype=np.int16)
    tensor = pb_utils.Tensor.from_dlpack("x", array)
    array[0] = 9
    assert tensor.as_numpy().tolist() == [9, 1, 2, 3]
    back = np.from_dlpack(tensor)
    array[1] = 8
    assert back.tolist() == [9, 8, 2, 3]
    assert pb_utils.Tensor.from_dlpack("x", np.array([True, False])).triton_dtype() == 1
    assert pb_utils.Tensor.from_dlpack("x", np.empty((0, 3), np.float32)).shape() == [0, 3]


def test_dlpack_refuses_what_it_must() -> None:
    def refused(source: object) -> str:
        with pytest.raises(pb_utils.TritonModelException) as failure:
            pb_utils.Tensor.from_dlpack("x", source)
        return str(failure.value)

    class Elsewhere:
        def __init__(self, device: int) -> None:
            self.device = device

        def __dlpack__(self, **_: object) -> object:
            raise AssertionError("not to be called")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (self.device, 0)

    assert refused([1]).startswith("Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpa")
    assert refused(np.zeros((4, 4))[:, :2]).startswith("DLPack tensor is not contiguous.")
    assert refused(Elsewhere(7)) == "DLDevice type 7 is not support by Python backend."
    assert refused(np.zeros(2, np.complex64)) == "NumPy dtype is not supported."
    capsule = pb_utils.Tensor("x", np.zeros(2)).to_dlpack()
    pb_utils.Tensor.from_dlpack("x", capsule)
    assert refused(capsule).startswith("The DLPack capsule was used before")
    with pytest.raises(pb_utils.TritonModelException, match=r"DLPack does not have support for string tensors\."):
        pb_utils.Tensor("x", np.array([b"a"], dtype=object)).to_dlpack()


@pytest.mark.parametrize(("number", "count"), [(1, 1), (5, 3), (11, 1), (11, 2), (13, 1), (14, 2)])
def test_whoever_holds_a_received_tensor_holds_its_memory(number: int, count: int) -> None:
    """The tensor, its array, a view of it, a DLPack consumer: the memory must not be used again while one lives."""

    def arrive() -> tuple[Any, weakref.ref[Any]]:
        memory = np.frombuffer(bytearray(0 if number == 13 else 64 * count), np.uint8)
        shape = [0] if number == 13 else [2]
        return received_tensors("x", number, shape, memory, count=count)[-1], weakref.ref(memory)

    tensor, memory = arrive()
    assert memory() is not None
    holders: list[Any] = [tensor]
    if number not in (13, 14):
        holders += [tensor.as_numpy(), tensor.as_numpy()[1:], memoryview(tensor.as_numpy())]
        holders += [np.from_dlpack(tensor)]
    elif number == 14:
        holders += [pb_utils.Tensor.from_dlpack("y", tensor)]
    del tensor
    while holders:
        assert memory() is not None
        holders.pop(0)
    gc.collect()
    assert memory() is None


def test_requests_that_a_model_makes() -> None:
    tensor = pb_utils.Tensor("x", np.zeros(1))
    request = pb_utils.InferenceRequest(
        "id", "corr", [tensor], ["OUT"], "other", 3, flags=1, timeout=5, parameters={"a": 1, "b": "x", "c": True}
    )
    assert request.inputs() == [tensor]
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("id", "corr", 1, 5)
    assert request.parameters() == '{"a": 1, "b": "x", "c": true}'
    assert request.requested_output_names() == {"OUT"}
    request.set_flags(2)
    assert request.flags() == 2
    assert not request.is_cancelled()
    assert request.trace().get_context() is None
    with pytest.raises(pb_utils.TritonModelException, match=r"BLS is only supported during the 'execute' function\."):
        request.exec()
    sender = request.get_response_sender()
    assert not sender.is_cancelled()
    with pytest.raises(pb_utils.TritonModelException, match="has no reference to the decoupled state of the model"):
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"correlation_id": 1.5}, pb_utils.TritonModelException, "Correlation ID must be integer or string"),
        (
            {"inputs": [None]},
            pb_utils.TritonModelException,
            "Input tensor for request with id 'r' and model name 'o' should not be empty.",
        ),
        (
            {"requested_output_names": [""]},
            pb_utils.TritonModelException,
            "Requested output name for request with id 'r' and model name 'o' should not be empty.",
        ),
        (
            {"parameters": {1: 1}},
            pb_utils.TritonModelException,
            "Expect parameters keys to have type str, found type <class 'int'>",
        ),
        (
            {"requested_output_names": [5]},
            TypeError,
            "InferenceRequest: each of requested_output_names must be str or bytes, found type <class 'int'>",
        ),
        ({"timeout": "1"}, TypeError, "InferenceRequest: timeout must be an integer, found type <class 'str'>"),
        (
            {"parameters": {"a": None}},
            pb_utils.TritonModelException,
            "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>",
        ),
    ],
)
def test_requests_that_cannot_be(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as failure:
        pb_utils.InferenceRequest(
            **{"request_id": "r", "model_name": "o", "inputs": [], "requested_output_names": [], **arguments}
        )
    assert str(failure.value) == text


def test_responses() -> None:
    tensor = pb_utils.Tensor("x", np.zeros(1))
    response = pb_utils.InferenceResponse([tensor], parameters={"a": 1})
    assert response.output_tensors() == [tensor]
    assert not response.has_error()
    assert response.error() is None
    assert response.parameters() == '{"a": 1}'
    assert pb_utils.get_output_tensor_by_name(response, "x") is tensor
    assert pb_utils.get_output_tensor_by_name(response, "y") is None
    error = pb_utils.TritonError("no")
    assert (error.message(), error.code()) == ("no", pb_utils.TritonError.INTERNAL)
    failed = pb_utils.InferenceResponse([tensor], error=error)
    assert failed.has_error()
    assert failed.error() is error
    assert pb_utils.get_output_tensor_by_name(failed, "x") is None
    with pytest.raises(pb_utils.TritonModelException, match="Output tensor for inference response should not be empty"):
        pb_utils.InferenceResponse([None])  # type: ignore[list-item]  # the mistake under test
    for wrong in ({"error": "text"}, {"output_tensors": ["x"]}):
        with pytest.raises(TypeError):
            pb_utils.InferenceResponse(**wrong)
    for arguments in (("no", 3), (5,)):
        with pytest.raises(TypeError):
            pb_utils.TritonError(*arguments)


def test_looking_things_up() -> None:
    tensors = [pb_utils.Tensor(name, np.zeros(1)) for name in "ab"]
    request = pb_utils.InferenceRequest(inputs=tensors, requested_output_names=[], model_name="m")
    assert pb_utils.get_input_tensor_by_name(request, "b") is tensors[1]
    assert pb_utils.get_input_tensor_by_name(request, "c") is None
    config = {"input": [{"name": "i"}], "output": [{"name": "o"}], "model_transaction_policy": {"decoupled": True}}
    assert pb_utils.get_input_config_by_name(config, "i") == {"name": "i"}
    assert pb_utils.get_output_config_by_name(config, "o") == {"name": "o"}
    assert pb_utils.get_output_config_by_name({}, "o") is None
    assert pb_utils.using_decoupled_model_transaction_policy(config)
    assert not pb_utils.using_decoupled_model_transaction_policy({})


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("load_model", ("m",), "Failed to load model: there is no server"),
        (
            "load_model",
            ("m", "", [1]),
            "failed to load model 'm', files should be a dictionary of file paths and file c",
        ),
        ("unload_model", ("m",), "Failed to unload model: there is no server"),
        ("is_model_ready", ("m",), "Failed to check model readiness: there is no server"),
        (
            "is_model_ready",
            ("m", "x"),
            "Failed to check model readiness: failed to get model version from specified version string 'x' (details: "
            "invalid literal for int() with base 10: 'x'), version should be an integral value > 0",
        ),
        ("is_model_ready", ("m", "0"), "Failed to check model readiness: failed to get model version from specified v"),
        (
            "MetricFamily",
            ("m", "text", pb_utils.MetricFamily.COUNTER),
            "Error when creating MetricFamily: there is no server",
        ),
    ],
)
def test_what_only_a_server_can_do(name: str, arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(pb_utils.TritonModelException, match=re.escape(text)):
        getattr(pb_utils, name)(*arguments)


def config_of(**fields: Any) -> pb_utils.ModelConfig:
    return pb_utils.ModelConfig(json.dumps({"name": "m", "max_batch_size": 4, **fields}))


A = {"name": "A", "data_type": "TYPE_FP32", "dims": [1]}
WHERE = "in auto-complete-config function for model 'm'"


@pytest.mark.parametrize(
    ("method", "argument", "text"),
    [
        (
            "set_max_batch_size",
            2,
            f"configuration specified max_batch_size 4, but {WHERE} specified max_batch_size 2",
        ),
        (
            "add_input",
            {**A, "x": 1},
            f"input 'A' {WHERE} contains property other than 'name', 'data_type', 'dims' and 'op",
        ),
        (
            "add_output",
            {**A, "optional": 1},
            f"output 'A' {WHERE} contains property other than 'name', 'data_type' and 'di",
        ),
        ("add_input", {"dims": [1]}, f"input {WHERE} is missing 'name' property."),
        ("add_input", {"name": "A", "dims": [1]}, f"input 'A' {WHERE} is missing 'data_type' property."),
        ("add_output", {"name": "A", "data_type": "TYPE_FP32"}, f"output 'A' {WHERE} is missing 'dims' property."),
        (
            "add_input",
            {**A, "data_type": "TYPE_INT8"},
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'A', model provides "
            "TYPE_INT8",
        ),
        (
            "add_input",
            {**A, "dims": [2]},
            "model 'm', tensor 'A': the model expects dims [2] but the model configuration specifies dims [1]",
        ),
        (
            "add_input",
            {**A, "optional": True},
            "model 'm', tensor 'A': the model expects optional True but the model configuration specifies optional "
            "False",
        ),
        (
            "set_model_transaction_policy",
            {"x": 1},
            f"model transaction property {WHERE} contains property other than 'decoupled'.",
        ),
        (
            "set_model_transaction_policy",
            {"decoupled": True},
            "trying to change decoupled property in auto-complete-config for model 'm', which is already set to "
            "'False'.",
        ),
    ],
)
def test_contradictions_of_a_configuration(method: str, argument: Any, text: str) -> None:
    config = config_of(input=[{**A, "optional": False}], model_transaction_policy={"decoupled": False})
    with pytest.raises(ValueError, match=re.escape(text)):
        getattr(config, method)(argument)


def test_completing_a_configuration() -> None:
    config = config_of(input=[{"name": "A", "data_type": "TYPE_INVALID", "dims": []}], dynamic_batching={"x": 1})
    config.add_input(dict(A))
    config.add_output(dict(A))
    config.set_max_batch_size(8)
    config.set_dynamic_batching()
    config.set_model_transaction_policy({"decoupled": True})
    config.set_model_transaction_policy({})
    assert config.as_dict() == {
        "name": "m",
        "max_batch_size": 8,
        "input": [A],
        "output": [A],
        "dynamic_batching": {"x": 1},
        "model_transaction_policy": {"decoupled": True},
    }
    ensemble = config_of(ensemble_scheduling={})
    with pytest.raises(ValueError, match=r"Configuration specified scheduling_choice as 'ensemble_scheduling', but "):
        ensemble.set_dynamic_batching()
