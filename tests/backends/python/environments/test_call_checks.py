"""Calls of `triton_python_backend_utils` that cannot work, seen in a model's text."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.python.environments.call_checks import call_faults

HEAD = """\
import numpy as np
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import Tensor as T
import c_python_backend_utils as c
"""
REPOSITORY = Path(__file__).parents[4]


def faults(directory: Path, text: str) -> list[str]:
    path = directory / "model.py"
    path.write_text(HEAD + text)
    return [fault.removeprefix(f"{path}:5: ") for fault in call_faults(path)]


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("pb_utils.InferenceRequest(model_name='m', inputs=[])", "missing required arguments: requested_output_names"),
        ("pb_utils.InferenceRequest()", "missing required arguments: inputs, requested_output_names, model_name"),
        (
            "pb_utils.InferenceRequest('', 0, [], 'OUT', 'm')",
            "requested_output_names must be a sequence of str",
        ),
        ("pb_utils.InferenceRequest('', 0, [], [], 'm', '1')", "model_version must be an integer, got '1'"),
        ("pb_utils.InferenceRequest('', 0, [], [], 'm', name='1')", "got an unexpected keyword argument 'name'"),
        ("pb_utils.Logger.log_info(5)", "Logger.log_info: message must be str or bytes, got 5"),
        ("pb_utils.Logger.log_warn([1, x])", "Logger.log_warn: message must be str or bytes, got [1, x]"),
        ("pb_utils.Logger.log_error()", "Logger.log_error: missing a required argument: 'message'"),
        ("T(name='x', numpy_array=a)", "Tensor: "),
        ("c.Tensor('x')", "Tensor: missing a required argument: 'numpy_array'"),
        ("pb_utils.Tensor.from_dlpack(5, a)", "Tensor.from_dlpack: name must be str or bytes, got 5"),
        ("pb_utils.TritonError(None)", "TritonError: message must be str or bytes, got None"),
        ("pb_utils.ResponseIterator", "'triton_python_backend_utils' has no 'ResponseIterator'"),
        ("from triton_python_backend_utils import Metric", "'triton_python_backend_utils' has no 'Metric'"),
        ("pb_utils.load_model('m', files={}, force=True)", "load_model: got an unexpected keyword argument 'force'"),
    ],
)
def test_what_cannot_work(tmp_path: Path, call: str, fault: str) -> None:
    (found,) = faults(tmp_path, call)
    assert fault in found


@pytest.mark.parametrize(
    "text",
    [
        "pb_utils.InferenceRequest(**given); pb_utils.Tensor(*given)",
        "pb_utils.InferenceRequest(model_name=b'm', inputs=x, requested_output_names=('a',), flags=True)",
        "pb_utils.Logger.log_info(f'{x}'); pb_utils.Logger.log('a', pb_utils.Logger.ERROR)",
        "pb_utils.InferenceResponse(); pb_utils.InferenceResponse([], pb_utils.TritonError('x'))",
        "pb_utils.InferenceResponse(output_tensors=[T('x', a)], parameters=None); pb_utils.np.zeros(1)",
        "pb_utils.MetricFamily(name='n', description='d', kind=pb_utils.MetricFamily.COUNTER).Metric(labels={})",
        "pb_utils.own = 5; pb_utils.Tensor = other; Tensor(name=5); json.dumps(5)",
        "c.InferenceResponseSender; c.ResponseIterator; c.MetricKind.COUNTER",
        "raise pb_utils.TritonModelException('a', 5)",
        "pb_utils.ModelConfig('{}').set_max_batch_size(8)",
        "no python {",
    ],
)
def test_what_may_work(tmp_path: Path, text: str) -> None:
    assert faults(tmp_path, text) == []


def test_what_only_works_here(tmp_path: Path) -> None:
    text = "async def f(r):\n async for x in await r.async_exec(decoupled=True): pass\n async for x in other(): pass\n"
    path = tmp_path / "model.py"
    path.write_text(HEAD + text)
    assert call_faults(path) == [
        f"{path}:6: only Trioton takes `async for` over the responses of a call; Triton takes `for`"
    ]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").rglob("model.py")), ids=str)
def test_the_examples_call_it_well(path: Path) -> None:
    assert call_faults(path) == []
