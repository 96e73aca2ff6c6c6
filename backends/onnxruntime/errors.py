"""Exceptions of onnxruntime, translated to server errors. They share no base class; each text opens with the library's
code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from backends.out_of_memory import is_out_of_memory, out_of_memory
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable

_TEXT = re.compile(r"\[ONNXRuntimeError\] : (?P<code>\d+) : [A-Z_]+ : (?P<text>.*)", re.DOTALL)
_INVALID_ARGUMENT = 2
_NO_TENSORRT = "Please install TensorRT libraries"
_OTHER_SHAPE = "but the computed output shape for this run is"


@contextmanager
def load_errors(model: str) -> Iterator[None]:
    """Around the making of a session: what the library raises becomes Internal, as in Triton."""
    try:
        yield
    except (ServerError, ImportError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"failed to load model '{model}'", error) from error
        if _NO_TENSORRT in str(error):
            raise Unavailable(
                f"model '{model}' has the accelerator 'tensorrt', but onnxruntime does not find TensorRT's libraries: "
                f"install TensorRT for the CUDA release that onnxruntime-gpu is built for, and name their folder in "
                f"LD_LIBRARY_PATH; or leave the accelerator out ({_translated(error)})"
            ) from error
        raise Internal(f"{_translated(error)} (model '{model}')") from error


@contextmanager
def run_errors(model: str) -> Iterator[None]:
    """Around a run: an invalid argument is the client's mistake, memory that is used up nobody's, anything else the
    model's."""
    try:
        yield
    except ServerError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"onnx runtime, model '{model}'", error) from error
        # A shape that configuration and file have announced, and that the model then does not give, is its own mistake.
        is_clients = _code(error) == _INVALID_ARGUMENT and _OTHER_SHAPE not in str(error)
        kind = InvalidArgument if is_clients else Internal
        raise kind(f"{_translated(error)} (model '{model}')") from error


def _code(error: Exception) -> int | None:
    found = _TEXT.match(str(error))
    return int(found["code"]) if found else None


def _translated(error: Exception) -> str:
    found = _TEXT.match(str(error))
    if found is None:
        return f"onnx runtime error: {error}"
    return f"onnx runtime error {found['code']}: {found['text'].strip()}"
