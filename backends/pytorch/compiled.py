"""AOTInductor packages: models compiled ahead of time for one kind of device.

The library checks no shapes: what the configuration allows is what the model gets, so `dims` must be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from backends.naming import Slot
from backends.pytorch.exported import compiled_input_slots, output_slots
from backends.pytorch.program import Program, Results
from backends.pytorch.values import Value


class CompiledProgram(Program):
    allows_order = False

    def __init__(self, path: Path, device_index: int) -> None:
        loaded: Any = torch._inductor.aoti_load_package(str(path), device_index=device_index)
        self._loader = loaded.loader
        in_spec, out_spec = (pytree.treespec_loads(spec) for spec in self._loader.get_call_spec())
        self._inputs = tuple(compiled_input_slots(in_spec))
        self._outputs = tuple(output_slots(out_spec))

    def input_slots(self, names: Sequence[str]) -> tuple[Slot, ...]:
        return self._inputs

    def output_slots(self) -> tuple[Slot, ...]:
        return self._outputs

    def run(self, slots: Sequence[Slot], values: Sequence[Value | None]) -> Results:
        found = cast("Sequence[torch.Tensor]", self._loader.run(list(values)))
        return Results(found, self._outputs)
