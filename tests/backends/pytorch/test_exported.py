"""Exported programs and compiled models: what their files tell, and how their tensors are called."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.export import Dim
from torch.utils import _pytree as pytree

from backends.interface import ModelSource
from backends.pytorch import PyTorchBackend
from backends.pytorch.exported import compiled_input_slots, output_slots
from backends.pytorch.options import ProcessOptions
from backends.pytorch.process_settings import ProcessSettings
from protocol.errors import InvalidArgument, ServerError
from tests.backends.helpers import answer, infer, loaded, request_of, source_of, spec_of

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def export(
    module: torch.nn.Module, folder: Path, *arguments: Any, free: Any = None, keywords: dict[str, Any] | None = None
) -> Path:
    program = torch.export.export(module.eval(), arguments, keywords, dynamic_shapes=free)
    (folder / "1").mkdir(parents=True)
    torch.export.save(program, folder / "1" / "model.pt2")
    return folder


async def completed(folder: Path, config: str = 'backend: "pytorch"') -> ModelSource:
    """The source with the configuration that the file has completed."""
    source = source_of(config, folder)
    return ModelSource("m", 1, folder, await PyTorchBackend.complete_config(source))


async def run(source: ModelSource, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
    async with loaded(PyTorchBackend, spec_of(source)) as backend:
        (response,) = await infer(backend, request_of(*inputs.items()))
    return answer(response)


async def refused(source: ModelSource) -> ServerError:
    with pytest.raises(ServerError) as caught:
        async with loaded(PyTorchBackend, spec_of(source)):
            pass
    return caught.value


class Scaling(torch.nn.Module):
    def forward(self, x: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * by, x.sum(dim=1).to(torch.int64)


async def test_everything_is_completed_from_the_file(tmp_path: Path) -> None:
    rows, width = Dim("rows"), Dim("width")
    free = ({0: rows, 1: width}, {0: rows})
    source = await completed(export(Scaling(), tmp_path, torch.zeros(2, 3), torch.zeros(2, 1), free=free))
    config = source.config
    assert (config.max_batch_size, config.dynamic_batching is not None) == (4, True)
    assert [(entry.name, entry.data_type.name, entry.dims) for entry in config.input] == [
        ("x", "FP32", (-1,)),
        ("by", "FP32", (1,)),
    ]
    assert [(entry.name, entry.data_type.name, entry.dims) for entry in config.output] == [
        ("OUTPUT__0", "FP32", (-1,)),
        ("OUTPUT__1", "INT64", (1,)),
    ]
    found = await run(source, x=X, by=np.array([[2], [3]], np.float32))
    assert found["OUTPUT__0"].tolist() == [[2, 4, 6], [12, 15, 18]]
    assert found["OUTPUT__1"].tolist() == [[6], [15]]


async def test_without_a_free_first_dimension_there_is_no_batch(tmp_path: Path) -> None:
    source = await completed(export(Scaling(), tmp_path, torch.zeros(2, 3), torch.zeros(2, 1)))
    assert (source.config.max_batch_size, source.config.input[0].dims) == (0, (2, 3))
    assert (await run(source, x=X, by=np.ones((2, 1), np.float32)))["OUTPUT__0"].tolist() == X.tolist()


class Nested(torch.nn.Module):
    def forward(self, first: dict[str, torch.Tensor], *, last: torch.Tensor) -> dict[str, Any]:
        return {"sums": [first["a"] + last, first["b"] + last], "last": last}


async def test_nested_arguments_and_results_have_paths(tmp_path: Path) -> None:
    a, b, last = (torch.full((2, 3), float(number)) for number in range(3))  # one tensor thrice would be one input
    folder = export(Nested(), tmp_path, {"a": a, "b": b}, keywords={"last": last})
    source = await completed(folder)
    assert [entry.name for entry in source.config.input] == ["first[a]", "first[b]", "last"]
    assert [entry.name for entry in source.config.output] == ["OUTPUT__0", "OUTPUT__1", "last"]
    config = """
        input [ { name: "ARGS[0][b]" data_type: TYPE_FP32 dims: [ 2, 3 ] },
                { name: "ARGS[0][a]" data_type: TYPE_FP32 dims: [ 2, 3 ] },
                { name: "KWARGS[last]" data_type: TYPE_FP32 dims: [ 2, 3 ] } ]
        output [ { name: "RESULT[sums][1]" data_type: TYPE_FP32 dims: [ 2, 3 ] } ]
    """
    given = {"ARGS[0][a]": X, "ARGS[0][b]": 10 * X, "KWARGS[last]": 100 * X}
    assert (await run(source_of(config, folder), **given))["RESULT[sums][1]"].tolist() == (110 * X).tolist()


async def test_a_limit_of_the_batch_that_the_file_tells_is_kept(tmp_path: Path) -> None:
    rows = Dim("rows", max=4)
    folder = export(Scaling(), tmp_path, torch.zeros(2, 3), torch.zeros(2, 1), free=({0: rows}, {0: rows}))
    error = await refused(await completed(folder, 'backend: "pytorch" max_batch_size: 8'))
    assert isinstance(error, InvalidArgument)
    assert "max_batch_size is 8, but the model was exported for at most 4 rows" in error.message


async def test_inputs_outside_of_what_was_exported_are_the_clients_mistake(tmp_path: Path) -> None:
    rows, width = Dim("rows"), Dim("width", min=2, max=5)
    free = ({0: rows, 1: width}, {0: rows})
    source = await completed(export(Scaling(), tmp_path, torch.zeros(2, 3), torch.zeros(2, 1), free=free))
    with pytest.raises(InvalidArgument, match=r"model 'm' was not exported for such inputs: Guard failed: .*5"):
        await run(source, x=np.zeros((1, 9), np.float32), by=np.ones((1, 1), np.float32))


async def test_a_program_is_compiled_on_request(tmp_path: Path) -> None:
    """By the backend that runs the graph as it is, which needs no compiler."""
    folder = export(Scaling(), tmp_path, torch.zeros(2, 3), torch.zeros(2, 1))
    compiling = """
        backend: "pytorch"
        parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"backend\\": \\"eager\\"}" } }
    """
    source = await completed(folder, compiling)
    assert (await run(source, x=X, by=np.ones((2, 1), np.float32)))["OUTPUT__0"].tolist() == X.tolist()


async def test_a_zip_archive_of_something_else_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    np.savez(tmp_path / "1" / "model.npz", x=X)
    (tmp_path / "1" / "model.npz").rename(tmp_path / "1" / "model.pt2")
    error = await refused(source_of('backend: "pytorch" default_model_filename: "model.pt2"', tmp_path))
    assert "is a ZIP archive, but holds no model of torch.jit.save, torch.export.save or AOTInductor" in error.message


def test_compiled_models_have_tritons_names() -> None:
    """And the keys of dictionaries as they are."""
    arguments = pytree.tree_flatten((({"k": 1, "l": [2, 3]}, 4), {"name": 5}))[1]
    assert [slot.names for slot in compiled_input_slots(arguments)] == [
        ("ARGS[0][k]",),
        ("ARGS[0][l][0]",),
        ("ARGS[0][l][1]",),
        ("ARGS[1]",),
        ("KWARGS[name]", "name"),
    ]
    for result, names in (
        (1, [("OUTPUT__0", "RESULT")]),
        ((1, 2), [("OUTPUT__0", "RESULT[0]"), ("OUTPUT__1", "RESULT[1]")]),
        ({"b": 1, "a": [2]}, [("b", "RESULT[b]"), ("OUTPUT__1", "RESULT[a][0]")]),
    ):
        assert [slot.names for slot in output_slots(pytree.tree_flatten(result)[1])] == names


def test_the_first_model_sets_what_the_process_has_once(caplog: pytest.LogCaptureFixture) -> None:
    settings, before = ProcessSettings(), torch.get_num_threads()
    try:
        settings.apply(ProcessOptions(intra_op_thread_count=1), "first")
        assert torch.get_num_threads() == 1
        with caplog.at_level(logging.WARNING):
            settings.apply(ProcessOptions(intra_op_thread_count=1), "second")
            assert not caplog.records
            settings.apply(ProcessOptions(intra_op_thread_count=2), "third")
        assert torch.get_num_threads() == 1
        assert "model 'third' wants INTRA_OP_THREAD_COUNT 2" in caplog.text
        assert "model 'first' has set it to 1" in caplog.text
    finally:
        torch.set_num_threads(before)
