"""Modules in a `model.py` (`runtime: "model.py"`), in workers as users have them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import backends.pytorch
from protocol.errors import ServerError, Unavailable
from tests.backends.conformance.serving import model_of, serving
from tests.examples.loading import load_model

MODULE = """
import helper
import torch
from torch.nn import Linear


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = Linear(3, 2)

    def forward(self, x, y=None):
        helper.note(torch)
        found = self.dense(x)
        if y is not None:
            found = found + y
        return found, x.sum(dim=1, keepdim=True)
"""
HELPER = """
import os

def note(torch):
    with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as file:
        file.write(f"{torch.get_num_threads()} {torch.is_inference_mode_enabled()}\\n")
"""
CONFIG = """
backend: "pytorch"
runtime: "model.py"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] optional: true } ]
output [ { name: "DENSE" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
dynamic_batching { }
"""


def add_model(
    repository: Path, text: str = MODULE, config: str = CONFIG, weights: dict[str, torch.Tensor] | None = None
) -> Path:
    folder = repository / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(text)
    (folder / "helper.py").write_text(HELPER)
    (folder.parent / "config.pbtxt").write_text(config)
    if weights is not None:
        torch.save(weights, folder / "model.pt")
    return folder


def linear() -> torch.nn.Linear:
    torch.manual_seed(3)
    return torch.nn.Linear(3, 2)


def parameter(key: str, value: str) -> str:
    return f'\nparameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


async def infer(repository: Path, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
    async with serving(repository) as core:
        return await model_of(core).infer(inputs)


async def refused(repository: Path) -> str:
    async with serving(repository, load=()) as core:
        with pytest.raises(ServerError) as caught:
            await core.load_model("m")
    return caught.value.message


async def test_a_module_with_its_weights_answers_as_it_does_directly(tmp_path: Path) -> None:
    """Batches of requests, optional inputs, a file beside it; in inference mode, with one thread."""
    dense = linear()
    folder = add_model(tmp_path, weights={f"dense.{key}": value for key, value in dense.state_dict().items()})
    random = np.random.default_rng(1)
    requests = [{"X": random.random((rows, 3), np.float32)} for rows in (1, 2, 3)]
    requests.append({**requests[1], "Y": random.random((2, 2), np.float32)})
    async with serving(tmp_path) as core:
        for given, found in zip(requests, await model_of(core).infer_many(requests), strict=True):
            assert not isinstance(found, Exception), found
            with torch.inference_mode():
                expected = dense(torch.from_numpy(given["X"])).numpy() + given.get("Y", np.float32(0))
            np.testing.assert_allclose(found["DENSE"], expected, rtol=1e-5)
            np.testing.assert_allclose(found["SUM"], given["X"].sum(axis=1, keepdims=True), rtol=1e-5)
    assert set((folder / "calls").read_text().splitlines()) == {"1 True"}


async def test_thread_counts_are_the_models_own(tmp_path: Path) -> None:
    folder = add_model(tmp_path, config=CONFIG + parameter("NUM_THREADS", "2"))
    await infer(tmp_path, X=np.ones((1, 3), np.float32))
    assert (folder / "calls").read_text() == "2 True\n"


async def test_a_module_is_compiled_on_request(tmp_path: Path) -> None:
    """By the backend that runs the graph as it is, which needs no compiler."""
    text = MODULE.replace("        helper.note(torch)\n", "")
    add_model(tmp_path, text, CONFIG + parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{\\"backend\\": \\"eager\\"}'))
    found = await infer(tmp_path, X=np.ones((2, 3), np.float32))
    assert found["SUM"].tolist() == [[3], [3]]


async def test_torchscript_may_stand_in_its_place(tmp_path: Path) -> None:
    class Doubling(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    folder = add_model(
        tmp_path,
        config="""
            backend: "pytorch" runtime: "model.py"
            input [ { name: "X" data_type: TYPE_BF16 dims: [ -1 ] } ]
            output [ { name: "Y" data_type: TYPE_BF16 dims: [ -1 ] } ]
        """,
    )
    (folder / "model.py").unlink()
    torch.jit.script(Doubling()).save(str(folder / "model.pt"))  # type: ignore[no-untyped-call]
    found = await infer(tmp_path, X=np.array([1.5, 2]).astype(ml_dtypes.bfloat16))
    assert found["Y"].astype(np.float32).tolist() == [3, 4]


async def test_the_class_may_be_named_where_there_are_several(tmp_path: Path) -> None:
    text = MODULE + "\n\nclass Another(torch.nn.Module):\n    pass\n"
    add_model(tmp_path, text, CONFIG + parameter("MODULE_CLASS", "Network"))
    assert (await infer(tmp_path, X=np.ones((1, 3), np.float32)))["SUM"].tolist() == [[3]]


async def test_a_request_that_fails_fails_alone(tmp_path: Path) -> None:
    text = MODULE.replace("        helper.note(torch)", '        assert x.min() >= 0, "negative"')
    add_model(tmp_path, text)
    good, bad = {"X": np.ones((1, 3), np.float32)}, {"X": -np.ones((1, 3), np.float32)}
    async with serving(tmp_path) as core:
        first, second, third = await model_of(core).infer_many([good, bad, good])
    assert isinstance(second, ServerError)
    assert "PyTorch execute failure: AssertionError: negative (model 'm')" in second.message
    for found in (first, third):
        assert not isinstance(found, Exception)
        assert found["SUM"].tolist() == [[3]]


@pytest.mark.parametrize(
    ("text", "config", "says"),
    [
        ("import torch\n", CONFIG, "Cannot find a subclass of torch.nn.Module in"),
        (MODULE, CONFIG + parameter("MODULE_CLASS", "None"), "Cannot find a subclass of torch.nn.Module called None"),
        (MODULE, CONFIG + parameter("NUM_THREADS", "many"), "expected a number of threads from 1 on, got 'many'"),
        (MODULE, CONFIG + parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", "5"), "expected a JSON object, got '5'"),
        (
            MODULE,
            CONFIG + parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{\\"model\\": 1}'),
            "'model' is not an optional parameter for 'torch.compile'",
        ),
        (MODULE, CONFIG + parameter("AUTOCAST_DTYPE", "FP8"), "expected FP16 or BF16, got 'FP8'"),
        (MODULE, CONFIG + 'default_model_filename: "other.py"', "No model found in"),
        (MODULE, CONFIG.replace("TYPE_FP32", "TYPE_STRING", 1), "tensor 'X' has datatype TYPE_STRING"),
        ("import a_package_that_is_not_there\n", CONFIG, "No module named 'a_package_that_is_not_there'"),
    ],
)
async def test_what_cannot_be_served_is_refused_with_the_reason(
    text: str, config: str, says: str, tmp_path: Path
) -> None:
    add_model(tmp_path, text, config)
    assert says in await refused(tmp_path)


async def test_weights_of_another_module_are_refused(tmp_path: Path) -> None:
    add_model(tmp_path, weights={"other": torch.ones(1)})
    message = await refused(tmp_path)
    assert "Error(s) in loading state_dict for Network" in message


def test_without_torch_the_load_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_model(Path(backends.pytorch.__file__).parent / "runtime" / "model.py")
    monkeypatch.setitem(sys.modules, "torch", None)  # Python's own way of saying that an import must fail
    with pytest.raises(Exception, match=r"model 'm' needs the torch package: pip install 'trioton\[torch\]'"):
        program.TritonPythonModel().initialize({"model_config": "{}", "model_name": "m"})


async def test_half_precision_on_request(tmp_path: Path) -> None:
    """Outputs have the configuration's datatype all the same."""
    text = MODULE.replace("        helper.note(torch)\n", "").replace(
        "found = self.dense(x)\n", "found = self.dense(x)\n        assert found.dtype is torch.bfloat16\n"
    )
    dense = linear()
    weights = {f"dense.{key}": value for key, value in dense.state_dict().items()}
    add_model(tmp_path, text, CONFIG + parameter("AUTOCAST_DTYPE", "BF16"), weights)
    x = np.array([[0.1, 0.2, 0.3]], np.float32)
    found = await infer(tmp_path, X=x)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = dense(torch.from_numpy(x)).float().numpy()
    assert found["DENSE"].dtype == np.float32
    np.testing.assert_allclose(found["DENSE"], expected)


async def test_a_run_that_needs_more_memory_than_there_is_may_succeed_later(tmp_path: Path) -> None:
    text = MODULE.replace("        helper.note(torch)\n", "        torch.empty(int(x.max()) * 10**12)\n")
    add_model(tmp_path, text)
    async with serving(tmp_path) as core:
        large, small = await model_of(core).infer_many(
            [{"X": np.full((1, 3), 1000, np.float32)}, {"X": np.zeros((1, 3), np.float32)}]
        )
    assert isinstance(large, Unavailable)
    assert "DefaultCPUAllocator: can't allocate memory" in large.message
    assert not isinstance(small, Exception)
