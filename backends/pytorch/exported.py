"""Models of `torch.export.save`, which declare all their inputs and outputs.

They hold a graph that runs operator by operator; `TORCH_COMPILE_OPTIONAL_PARAMETERS` has it compiled when it loads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from backends.naming import Slot
from backends.pytorch.program import Program, Results
from backends.pytorch.values import DATA_TYPES, Value
from backends.signature_backend import Signature
from protocol.datatypes import DataType
from protocol.errors import Unsupported
from repository.completion import TensorSignature

# The library reads one file at a time in a process, and fails where two threads try.
_READING = threading.Lock()
# Dimensions without a limit have some number beyond all others.
_NO_LIMIT = 2**31


class ExportedProgram(Program):
    def __init__(self, path: Path, device: torch.device | None, compile: dict[str, Any] | None) -> None:
        with _READING:
            exported = torch.export.load(path)
        if device is not None and device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            exported = move_to_device_pass(exported, device)
        self._exported = exported
        self._module: Any = exported.module()
        if compile is not None:
            self._module = torch.compile(self._module, **compile)
        self._in_spec, self._out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec
        names = exported.module_call_graph[0].signature.forward_arg_names or ()
        self._inputs = tuple(_input_slots(self._in_spec, names))
        self._outputs = tuple(output_slots(self._out_spec))
        self._nodes = {node.name: node for node in exported.graph.nodes}

    def input_slots(self, names: Sequence[str]) -> tuple[Slot, ...]:
        return self._inputs

    def output_slots(self) -> tuple[Slot, ...]:
        return self._outputs

    def run(self, slots: Sequence[Slot], values: Sequence[Value | None]) -> Results:
        arguments, keywords = pytree.tree_unflatten(list(values), self._in_spec)
        found = self._module(*arguments, **keywords)
        return Results(pytree.tree_leaves(found), self._outputs)

    def tensors(self) -> Iterable[torch.Tensor]:
        yield from self._exported.state_dict.values()
        yield from (each for each in self._exported.constants.values() if isinstance(each, torch.Tensor))

    def signature(self) -> Signature:
        """Raises Unsupported for an argument that is no tensor, or has a datatype that the protocol does not know."""
        given = self._exported.graph_signature
        return (
            [self._describe(slot, name) for slot, name in zip(self._inputs, given.user_inputs, strict=True)],
            [
                self._describe(slot if slot.names else Slot((f"OUTPUT__{index}",)), name)
                for index, (slot, name) in enumerate(zip(self._outputs, given.user_outputs, strict=True))
            ],
        )

    def largest_batch(self) -> int | None:
        """The most rows that the file says its inputs can have; None where it says nothing."""
        limits = []
        for name in self._exported.graph_signature.user_inputs:
            node = self._nodes.get(name) if isinstance(name, str) else None
            shape = getattr(None if node is None else node.meta.get("val"), "shape", ())
            if shape and isinstance(shape[0], torch.SymInt):
                limit = self._exported.range_constraints.get(shape[0].node.expr)
                if limit is not None and limit.upper < _NO_LIMIT:
                    limits.append(int(limit.upper))
        return min(limits, default=None)

    def _describe(self, slot: Slot, node_name: object) -> TensorSignature:
        node = self._nodes.get(node_name) if isinstance(node_name, str) else None
        value = None if node is None else node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"'{slot.name}' is no tensor in the exported program, but {node_name!r}")
        shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
        return TensorSignature(slot.name, DATA_TYPES.get(value.dtype, DataType.INVALID), shape)


def _input_slots(spec: Any, argument_names: Sequence[str]) -> Iterator[Slot]:
    """Names of an argument: as `forward` has it, or as a key of the only dictionary; then its path."""
    arguments, keywords = _structure(spec)
    is_dictionary = len(arguments) == 1 and not keywords and isinstance(arguments[0], dict)
    for index, argument in enumerate(arguments):
        name = argument_names[index] if index < len(argument_names) else f"ARGS[{index}]"
        for path in _paths(argument):
            bare = path[1:-1] if is_dictionary else name + path
            yield Slot((bare, f"ARGS[{index}]{path}"))
    for name, argument in keywords.items():
        for path in _paths(argument):
            yield Slot((name + path, f"KWARGS[{name}]{path}"))


def compiled_input_slots(spec: Any) -> Iterator[Slot]:
    """The arguments of a compiled model, which has no names for positional arguments."""
    for slot in _input_slots(spec, ()):
        bare, path = slot.names
        yield Slot((path,) if bare == path else (path, bare))


def output_slots(spec: Any) -> Iterator[Slot]:
    """Names of a result: as a key of the dictionary that is returned, or as its position; then its path."""
    found = _structure(spec)
    for index, path in enumerate(_paths(found)):
        bare = path[1:-1] if isinstance(found, dict) and path.count("[") == 1 else f"OUTPUT__{index}"
        yield Slot((bare, f"RESULT{path}"))


def _structure(spec: Any) -> Any:
    """The tuples, lists and dictionaries that the specification describes, with nothing in them."""
    return pytree.tree_unflatten([None] * spec.num_leaves, spec)


def _paths(structure: Any) -> Iterator[str]:
    if isinstance(structure, dict):
        for key, value in structure.items():
            yield from (f"[{key}]{rest}" for rest in _paths(value))
    elif isinstance(structure, list | tuple):
        for index, value in enumerate(structure):
            yield from (f"[{index}]{rest}" for rest in _paths(value))
    else:
        yield ""
