"""Modules for the tests and their files, small and made on the spot. Importing it needs torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from backends.pytorch.values import DTYPES
from protocol.datatypes import DataType


def torch_dtype(datatype: DataType) -> torch.dtype:
    return DTYPES[datatype]


class Identity(torch.nn.Module):
    def forward(self, X: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return X.clone()


class Heavy(torch.nn.Module):
    """Sum and difference of its arguments, with weights of so many megabytes that change nothing."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(16, megabytes * 1024 * 1024 // 4 // 16))

    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor) -> Any:  # noqa: N803
        left = INPUT0 + (INPUT0 @ self.weights).amax(dim=1, keepdim=True)
        return left + INPUT1, left - INPUT1


def save_script(module: torch.nn.Module, folder: Path, config: str, filename: str = "model.pt") -> Path:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    torch.jit.script(module.eval()).save(str(folder / "1" / filename))  # type: ignore[no-untyped-call]
    (folder / "config.pbtxt").write_text(config)
    return folder


def save_exported(
    module: torch.nn.Module,
    folder: Path,
    config: str,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    *,
    count: int = 1,
    dims: Iterable[int] = (0,),
) -> Path:
    """Exported for `count` arguments of one shape, of which `dims` may be of any size."""
    free = {dim: Dim(f"d{dim}") for dim in dims}
    program = torch.export.export(
        module.eval(), tuple(torch.zeros(shape, dtype=dtype) for _ in range(count)), dynamic_shapes=(free,) * count
    )
    (folder / "1").mkdir(parents=True, exist_ok=True)
    torch.export.save(program, folder / "1" / "model.pt2")
    (folder / "config.pbtxt").write_text(config)
    return folder
