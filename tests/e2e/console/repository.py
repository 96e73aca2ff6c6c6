"""A model of each kind that the console shows in its own way."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.repository import add_add_sub

# Markup, were it ever taken for that.
HOSTILE = "<img src=x onerror=document.title='owned'>"

_PYTHON = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([%s]) for request in requests]
"""
_SAME = "pb_utils.Tensor('%s', pb_utils.get_input_tensor_by_name(request, '%s').as_numpy())"

_STREAM = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0].decode()
            for word in text.split():
                out = pb_utils.Tensor("text_output", np.array([(word + " ").encode()], dtype=object))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

_WAITING = """import pathlib, time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        while not pathlib.Path(%r).exists():
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(request, "IN")]) for request in requests]
"""


def build(directory: Path) -> None:
    """All load but `broken`; `waiting` answers when the file `go` is there."""
    add_add_sub(directory / "add_sub", versions=(1, 2))
    for version in (1, 2):
        (directory / "add_sub" / str(version)).mkdir(exist_ok=True, parents=True)
    _python(directory / HOSTILE, _PYTHON % (_SAME % ("OUT", "IN")), _tensors("IN", "OUT", "TYPE_FP32", "[ 4 ]"))
    _python(
        directory / "picture", _PYTHON % (_SAME % ("OUT", "IN")), _tensors("IN", "OUT", "TYPE_UINT8", "[ 8, 12, 3 ]")
    )
    _python(directory / "texts", _PYTHON % (_SAME % ("OUT", "IN")), _tensors("IN", "OUT", "TYPE_STRING", "[ -1 ]"))
    _python(directory / "large", _PYTHON % (_SAME % ("OUT", "IN")), _tensors("IN", "OUT", "TYPE_FP32", "[ -1 ]"))
    story = _tensors("text_input", "text_output", "TYPE_STRING", "[ 1 ]")
    _python(directory / "story", _STREAM, story + "model_transaction_policy { decoupled: true }\n")
    waiting = _tensors("IN", "IN", "TYPE_FP32", "[ 1 ]")
    _python(directory / "waiting", _WAITING % str(directory.parent / "go"), waiting)
    _python(
        directory / "broken",
        "raise ValueError('this model cannot be loaded')\n",
        _tensors("A", "B", "TYPE_FP32", "[ 1 ]"),
    )
    _split(directory / "split", {"add_sub:1": 80, "add_sub:2": 20})


def add_splits(directory: Path, count: int) -> None:
    """Models that cost next to nothing, named `split-<number>`; their target is `add_sub`."""
    for number in range(count):
        _split(directory / f"split-{number:04}", {"add_sub:1": 1})


def _split(model: Path, weights: dict[str, int]) -> None:
    (model / "1").mkdir(parents=True)
    targets = [
        {"model": name.partition(":")[0], "version": int(name.partition(":")[2]), "weight": weight}
        for name, weight in weights.items()
    ]
    text = json.dumps(json.dumps({"targets": targets}))
    (model / "config.pbtxt").write_text(
        f'backend: "traffic_split"\nparameters {{ key: "split" value {{ string_value: {text} }} }}\n'
    )


def _python(model: Path, code: str, tensors: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(code)
    (model / "config.pbtxt").write_text(f'backend: "python"\n{tensors}')


def _tensors(given: str, taken: str, datatype: str, dims: str) -> str:
    return (
        f"input [ {{ name: {json.dumps(given)} data_type: {datatype} dims: {dims} }} ]\n"
        f"output [ {{ name: {json.dumps(taken)} data_type: {datatype} dims: {dims} }} ]\n"
    )
