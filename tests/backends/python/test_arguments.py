"""What `triton_python_backend_utils` takes and refuses as arguments: what pybind11 does in Triton's."""

from __future__ import annotations

import decimal
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backends.python.worker.trioton_worker import api
from backends.python.worker.trioton_worker.arguments import (
    INT64,
    UINT32,
    to_bool,
    to_float,
    to_integer,
    to_sequence,
    to_text,
)

pb_utils: Any = api  # whose annotations are narrower than what it takes


class Named(str, enum.Enum):  # noqa: UP042 (the older kind, which prints as something else)
    OUT = "OUT"


class Index:
    def __index__(self) -> int:
        return 7


X = pb_utils.Tensor("x", np.zeros(1))
REQUEST: dict[str, Any] = {"model_name": "m", "inputs": [X], "requested_output_names": ["OUT"]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é", "é"),
        ("é".encode(), "é"),
        (bytearray(b"ab"), "ab"),
        (np.bytes_(b"ab"), "ab"),
        (np.str_("ab"), "ab"),
        (np.array([b"ab"], object)[0], "ab"),
        (Named.OUT, "OUT"),
        (b"\xff", "\ufffd"),
    ],
)
def test_text(value: Any, text: str) -> None:
    found = to_text(value, "x")
    assert (found, type(found)) == (text, str)


@pytest.mark.parametrize("value", [None, 5, 1.5, [b"ab"], memoryview(b"ab"), np.array(b"ab"), True])
def test_what_is_no_text(value: Any) -> None:
    with pytest.raises(TypeError, match="where must be "):
        to_text(value, "where")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5),
        (True, 1),
        (np.int8(-5), -5),
        (np.uint64(5), 5),
        (np.array(5), 5),
        (np.bool_(True), 1),
        (Index(), 7),
        (decimal.Decimal("5.9"), 5),
        (np.float32(5.9), 5),
    ],
)
def test_integers(value: Any, number: int) -> None:
    found = to_integer(value, "x", INT64)
    assert (found, type(found)) == (number, int)


@pytest.mark.parametrize("value", [None, "5", b"5", 5.0, np.float64(5), 1j, [5], -1, 1 << 32, np.int64(-1)])
def test_what_is_no_integer(value: Any) -> None:
    with pytest.raises(TypeError, match="where must be "):
        to_integer(value, "where", UINT32)


def test_numbers_and_truth() -> None:
    numbers = (1, 1.5, np.float16(2), np.int8(3), decimal.Decimal(4), True, Index())
    assert [to_float(number, "x") for number in numbers] == [1, 1.5, 2, 3, 4, 1, 7]
    for wrong in ("1", b"1", None, [1], 1j):
        with pytest.raises(TypeError, match="where must be a number"):
            to_float(wrong, "where")
    assert [to_bool(value, "x") for value in (True, np.bool_(True), 1, 2.5, 0, False)] == [*[True] * 4, False, False]
    for wrong in ("yes", b"", [1], None):
        with pytest.raises(TypeError, match="where must be bool"):
            to_bool(wrong, "where")


def test_sequences() -> None:
    for value in (["a", "b"], ("a", "b"), np.array(["a", "b"], object)):
        assert list(to_sequence(value, "x", "str")) == ["a", "b"]
    for wrong in ("ab", b"ab", {"a": 1}, {"a"}, None, 5, iter(["a"]), np.array("a")):
        with pytest.raises(TypeError):
            to_sequence(wrong, "where", "str")


def test_a_request_made_of_what_a_bytes_tensor_has() -> None:
    """As in NVIDIA's own example of BLS, which names the model by an element of an input."""
    names = np.array([b"OUT", b"model", b"id"], dtype=object)
    request = pb_utils.InferenceRequest(
        request_id=names[2],
        model_name=names[1],
        requested_output_names=names[:1],
        inputs=(pb_utils.Tensor(np.bytes_(b"x"), np.zeros(1)),),
        model_version=np.int64(3),
        flags=np.uint32(1),
        timeout=np.array(5),
        correlation_id=True,
    )
    assert (request.request_id(), request.requested_output_names(), request.flags()) == ("id", {"OUT"}, 1)
    header = request._record.header
    assert (header.model_name, header.model_version, request.timeout()) == ("model", 3, 5)
    assert [tensor.name() for tensor in request.inputs()] == ["x"]
    assert request.correlation_id() == 1
    request.set_flags(np.int64(2))
    assert request.flags() == 2
    request.set_release_flags(np.int8(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE))
    assert pb_utils.InferenceRequest(**REQUEST, parameters=[("a", 1)]).parameters() == '{"a": 1}'
    assert pb_utils.TritonError(b"no").message() == "no"
    assert pb_utils.InferenceResponse((X,)).output_tensors() == [X]
    assert pb_utils.Tensor.from_dlpack(b"y", np.zeros(2)).name() == "y"
    assert pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, np.int32(1)).preferred_device_id == 1


@pytest.mark.parametrize("name", ["model_name", "inputs", "requested_output_names"])
def test_what_a_request_must_have(name: str) -> None:
    with pytest.raises(TypeError, match=f"InferenceRequest: missing required arguments: {name}$"):
        pb_utils.InferenceRequest(**{key: value for key, value in REQUEST.items() if key != name})


@pytest.mark.parametrize(
    "given",
    [
        {"requested_output_names": "OUT"},
        {"requested_output_names": {"OUT"}},
        {"requested_output_names": [None]},
        {"inputs": X},
        {"model_name": None},
        {"request_id": None},
        {"request_id": 5},
        {"flags": -1},
        {"flags": 1.0},
        {"timeout": -1},
        {"model_version": "1"},
        {"model_version": None},
        {"correlation_id": -1},
        {"preferred_memory": None},
        {"trace": None},
        {"parameters": 5},
    ],
)
def test_what_a_request_may_not_have(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        pb_utils.InferenceRequest(**{**REQUEST, **given})


def test_correlation_ids_are_plain_numbers_or_text() -> None:
    for wrong in (np.int64(5), b"five", None):
        with pytest.raises(pb_utils.TritonModelException, match="Correlation ID must be integer or string"):
            pb_utils.InferenceRequest(**REQUEST, correlation_id=wrong)


def test_lists_of_tensors_are_the_callers_own() -> None:
    request = pb_utils.InferenceRequest(**REQUEST)
    request.inputs().clear()
    response = pb_utils.InferenceResponse([X])
    response.output_tensors().clear()
    assert (request.inputs(), response.output_tensors()) == ([X], [X])


def test_arguments_without_names() -> None:
    with pytest.raises(TypeError):
        pb_utils.Tensor(name="x", numpy_array=np.zeros(1))
    with pytest.raises(TypeError):
        pb_utils.Tensor.from_dlpack("x", tensor=np.zeros(1))


@pytest.mark.parametrize("method", ["log", "log_info", "log_warn", "log_error", "log_verbose"])
def test_messages_are_text(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = getattr(pb_utils.Logger, method)
    log(np.bytes_(b"words"))
    if method != "log_verbose":
        assert capsys.readouterr().err.endswith(": words\n")
    for wrong in (5, None, ValueError("x"), ["x"]):
        with pytest.raises(TypeError, match="Logger: message must be str or bytes"):
            log(wrong)
    with pytest.raises(TypeError, match="level must be one of Logger's levels"):
        pb_utils.Logger.log("x", 1)


def test_choices_are_of_their_own_kind() -> None:
    calls: list[Callable[[], object]] = [
        lambda: pb_utils.MetricFamily("m", "text", 0),
        lambda: pb_utils.PreferredMemory(0),
        lambda: pb_utils.PreferredMemory(None),
        lambda: pb_utils.TritonError("no", 3),
        lambda: pb_utils.TritonError("no", None),
        lambda: pb_utils.TritonError(None),
    ]
    for made in calls:
        with pytest.raises(TypeError):
            made()


def test_the_loading_api_takes_bytes_and_no_more() -> None:
    taken: list[Callable[[], object]] = [
        lambda: pb_utils.load_model(b"m", b"{}", {b"file:1/a": b""}),
        lambda: pb_utils.unload_model(np.bytes_(b"m"), 1),
        lambda: pb_utils.is_model_ready(b"m", b"1"),
    ]
    for call in taken:
        with pytest.raises(pb_utils.TritonModelException, match="there is no server"):
            call()
    refused: list[Callable[[], object]] = [
        lambda: pb_utils.load_model("m", None),
        lambda: pb_utils.load_model("m", "", {"file:1/a": "text"}),
        lambda: pb_utils.load_model("m", "", {1: b""}),
        lambda: pb_utils.unload_model("m", "yes"),
        lambda: pb_utils.is_model_ready("m", 1),
    ]
    for call in refused:
        with pytest.raises(TypeError):
            call()
