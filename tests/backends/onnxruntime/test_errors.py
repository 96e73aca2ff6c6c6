"""The library's exceptions as ours."""

from __future__ import annotations

import pytest

from backends.onnxruntime.errors import load_errors, run_errors
from protocol.errors import Internal, InvalidArgument, Unavailable


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Bad dims\n", InvalidArgument, "onnx runtime error 2: Bad dims"),
        ("[ONNXRuntimeError] : 1 : FAIL : node A\nnode B", Internal, "onnx runtime error 1: node A\nnode B"),
        ("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : X", Internal, "onnx runtime error 6: X"),
        ("something of Python's", Internal, "onnx runtime error: something of Python's"),
    ],
)
def test_a_failed_run_keeps_code_and_text(text: str, kind: type[Exception], expected: str) -> None:
    with pytest.raises(kind) as caught, run_errors("m"):
        raise RuntimeError(text)
    assert str(caught.value) == f"{expected} (model 'm')"


def test_a_failed_load_is_internal_whatever_the_code() -> None:
    with pytest.raises(Internal, match=r"^onnx runtime error 2: T \(model 'm'\)$"), load_errors("m"):
        raise RuntimeError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : T")


def test_our_own_errors_pass() -> None:
    with pytest.raises(Unavailable, match=r"^no$"), load_errors("m"):
        raise Unavailable("no")
    with pytest.raises(Unavailable, match=r"^no$"), run_errors("m"):
        raise Unavailable("no")


def test_a_load_without_tensorrts_libraries_says_what_is_missing() -> None:
    """The words are those of onnxruntime-gpu 1.31.1."""
    words = "RegisterTensorRTPluginsAsCustomOps() Please install TensorRT libraries as mentioned in the GPU requir"
    with pytest.raises(Unavailable) as caught, load_errors("m"):
        raise RuntimeError(words)
    assert caught.value.message.startswith("model 'm' has the accelerator 'tensorrt', but onnxruntime does not find")
    assert words in caught.value.message
