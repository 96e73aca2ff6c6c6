"""Weights in a file beside the model's: `model.npz` holds the first positional argument of the function in `model.jax`.

Weights that a function has as constants are in its program, and so in each executable that is made of it; these are on
the device once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from backends.jax.errors import load_errors
from backends.jax.exported import ExportedFunction
from protocol.errors import Internal, InvalidArgument


def read_weights(function: ExportedFunction, *, model: str) -> list[NDArray[Any]]:
    """The arrays in the order of the function's leaves; none where it has no weights apart.

    Raises:
        InvalidArgument: names, shapes or datatypes are not those of the function's first argument.
        Internal: the file cannot be read.
    """
    path = function.weights_file
    if path is None:
        return []
    place = f"failed to load model '{model}': '{path}'"
    expected = function.first_argument
    found: list[NDArray[Any]] = []
    with load_errors(model, f"reading '{path}'"), _opened(path, place) as archive:
        missing, unknown = expected.keys() - set(archive.files), set(archive.files) - expected.keys()
        if missing or unknown or not expected:
            raise InvalidArgument(
                f"{place} is to hold the leaves of the function's first positional argument; missing are: "
                f"{_listed(missing)}; unknown are: {_listed(unknown)}"
            )
        for name, aval in expected.items():
            array = archive[name]
            if array.dtype.kind == "V" and array.dtype.itemsize == np.dtype(aval.dtype).itemsize:
                array = array.view(aval.dtype)  # numpy's files have no name for bfloat16
            if array.shape != aval.shape or array.dtype != aval.dtype:
                raise InvalidArgument(
                    f"{place}: the function expects {aval.dtype}{list(aval.shape)} as '{name}', the file has "
                    f"{array.dtype}{list(array.shape)}"
                )
            found.append(array)
    return found


def on_device(weights: list[NDArray[Any]], device: Any) -> list[Any]:
    with jax.enable_x64(True):
        return [jax.device_put(array, device) for array in weights]


def _opened(path: Path, place: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except Exception as error:
        raise Internal(f"{place} cannot be read as an archive of numpy.savez ({error})") from error


def _listed(names: set[str]) -> str:
    listed = sorted(names)
    return ", ".join([*listed[:5], *(["…"] if len(listed) > 5 else [])]) or "none"
