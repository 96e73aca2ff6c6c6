"""Functions made on the spot, exported and saved as models. Needs the packages jax and flatbuffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax import export

from protocol.datatypes import DataType


def spec(shape: str, datatype: DataType = DataType.FP32, *, scope: Any = None) -> Any:
    """An argument of this shape, with symbols as in `rows, 3`; `""` for a scalar. Arguments of one function have their
    symbols, and the constraints on them, in one `scope`."""
    with jax.enable_x64(True):
        return jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), datatype.dtype)


def exported(
    function: Callable[..., Any], *arguments: Any, platforms: Sequence[str] = ("cpu",), **keywords: Any
) -> Any:
    """With numbers of 64 bits as they are."""
    with jax.enable_x64(True):
        return export.export(jax.jit(function), platforms=platforms)(*arguments, **keywords)


def save(folder: Path, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Path:
    """As version 1 of the model in this folder; its file."""
    path = folder / "1" / "model.jax"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(exported(function, *arguments, **keywords).serialize())
    return path


def identity(folder: Path, datatype: DataType, shape: str) -> Path:
    """`Y` = `X`."""
    return save(folder, lambda X: {"Y": X}, X=spec(shape, datatype))  # noqa: N803
