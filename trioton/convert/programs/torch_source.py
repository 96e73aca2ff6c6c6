"""Torch sources: modules of Python files, TorchScript, exported programs."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.pytorch.exported import ExportedProgram
from backends.pytorch.values import DATA_TYPES
from protocol.datatypes import DataType
from trioton.convert.programs.transformers_module import TransformersModule
from trioton.convert.sources import Source, SourceKind
from trioton.convert.tensors import Array, Arrays, Description, TensorSpec


def load(source: Source) -> TorchSource:
    return TorchSource(source)


class TorchSource:
    parameters: Mapping[str, str] = {}

    def __init__(self, source: Source) -> None:
        self._source = source
        self.module = load_module(source)
        self._wide: Any = None
        # A program takes its arguments as it was exported with them.
        self._positional = _positional_names(source)

    def inputs(self) -> Sequence[TensorSpec]:
        if self._source.kind is SourceKind.EXPORTED:
            return list(_exported_inputs(Path(self._source.path)))
        if isinstance(self.module, TransformersModule):
            return self.module.inputs()
        return [TensorSpec(name, "", ()) for name in argument_names(self.module)]

    def answer(self, inputs: Arrays, *, is_wide: bool) -> Arrays:
        if is_wide and self._wide is None:
            self._wide = copy.deepcopy(self.module).double()
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if is_wide else usual)  # of what the module makes as it runs
        try:
            with torch.no_grad():
                tensors = tensors_of(inputs, is_wide=is_wide)
                arguments = [tensors.pop(name) for name in self._positional]
                found = (self._wide if is_wide else self.module)(*arguments, **tensors)
        finally:
            torch.set_default_dtype(usual)
        return {name: _to_numpy(tensor) for name, tensor in named_outputs(found)}


def load_module(source: Source) -> Any:
    """The module, in evaluation mode."""
    if source.kind is SourceKind.TORCH_SCRIPT:
        return torch.jit.load(source.path, map_location="cpu").eval()  # type: ignore[no-untyped-call]  # untyped in torch
    if source.kind is SourceKind.EXPORTED:
        return torch.export.load(source.path).module()
    if source.kind is SourceKind.HUGGING_FACE:
        return TransformersModule.load(Path(source.path)).eval()
    return _from_factory(Path(source.path), source.factory).eval()


def _from_factory(path: Path, factory: str) -> torch.nn.Module:
    sys.path.insert(0, str(path.parent))  # it may import what lies beside it
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"'{path}' cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    made = getattr(module, factory)()
    if not isinstance(made, torch.nn.Module):
        raise TypeError(f"{path.name}:{factory}() must answer a torch.nn.Module, got {type(made).__name__}")
    return made


def argument_names(module: Any) -> list[str]:
    schema = getattr(module.forward, "schema", None)
    if schema is not None:  # TorchScript
        return [argument.name for argument in schema.arguments if argument.name != "self"]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, each in inspect.signature(module.forward).parameters.items() if each.kind in kinds]


def tensors_of(inputs: Arrays, *, is_wide: bool = False) -> dict[str, torch.Tensor]:
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}
    if not is_wide:
        return tensors
    return {name: each.double() if each.is_floating_point() else each for name, each in tensors.items()}


def named_outputs(found: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """By the keys of a dictionary, else by position, as the pytorch backend names them."""
    if isinstance(found, dict):
        yield from found.items()
    else:
        results = found if isinstance(found, list | tuple) else [found]
        yield from ((f"OUTPUT__{index}", each) for index, each in enumerate(results))


def dynamic_shapes(description: Description) -> dict[str, dict[int, Any]]:
    """What varies, as `torch.export` asks for it: it fails where the module itself fixes one of them."""
    first = 1 if description.is_batching else 0
    found: dict[str, dict[int, Any]] = {}
    for spec in description.inputs:
        axes = {0: torch.export.Dim.DYNAMIC} if description.is_batching else {}
        axes.update(
            {axis + first: torch.export.Dim.DYNAMIC for axis, dim in enumerate(spec.dims) if isinstance(dim, str)}
        )
        found[spec.name] = axes
    return found


def export(source: Source, module: Any, inputs: Arrays, description: Description) -> torch.export.ExportedProgram:
    """The source's own program where it is one. Raises whatever `torch.export` does where it cannot."""
    if source.kind is SourceKind.EXPORTED:
        return torch.export.load(source.path)
    tensors = tensors_of(inputs)
    with torch.no_grad():
        return torch.export.export(module, (), tensors, dynamic_shapes=dynamic_shapes(description))


def _positional_names(source: Source) -> list[str]:
    if source.kind is not SourceKind.EXPORTED:
        return []
    slots = ExportedProgram(Path(source.path), None, None).input_slots(())
    return [slot.name for slot in slots if slot.names[-1].startswith("ARGS")]


def _exported_inputs(path: Path) -> Iterator[TensorSpec]:
    program = ExportedProgram(path, None, None)
    signature, _ = program.signature()
    for tensor in signature:
        if tensor.data_type is DataType.INVALID:
            raise ValueError(f"input '{tensor.name}' is of a datatype that the protocol does not have")
        dims = tuple(
            dim if dim >= 0 else ("batch" if axis == 0 else f"{tensor.name}_{axis}")
            for axis, dim in enumerate(tensor.shape)
        )
        yield TensorSpec(tensor.name, tensor.data_type.name, dims)


def _to_numpy(tensor: Any) -> Array:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"the module must answer tensors, got {type(tensor).__name__}")
    if tensor.dtype not in DATA_TYPES:
        raise TypeError(f"the module answers {tensor.dtype}, which is no datatype of the protocol")
    return np.ascontiguousarray((tensor.float() if tensor.dtype is torch.bfloat16 else tensor).detach().cpu().numpy())
