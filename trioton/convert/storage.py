"""Files that the command and its processes exchange: cases and answers, each in one `.npz` without pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trioton.convert.cases import Case, Way
from trioton.convert.tensors import Array, Arrays

_INDEX = "index"


def save_cases(path: Path, cases: Sequence[Case]) -> None:
    about = [{"name": case.name, "rows": case.rows, "way": case.way.value} for case in cases]
    _save(path, about, [case.inputs for case in cases])


def load_cases(path: Path) -> list[Case]:
    about, tensors = _load(path)
    return [
        Case(each["name"], inputs, each["rows"], Way(each["way"])) for each, inputs in zip(about, tensors, strict=True)
    ]


def save_answers(path: Path, answers: Mapping[str, Arrays | str]) -> None:
    """Texts in place of answers say why there is none."""
    about = [{"name": name, "error": each if isinstance(each, str) else ""} for name, each in answers.items()]
    _save(path, about, [{} if isinstance(each, str) else each for each in answers.values()])


def load_answers(path: Path) -> dict[str, Arrays | str]:
    about, tensors = _load(path)
    return {each["name"]: each["error"] or arrays for each, arrays in zip(about, tensors, strict=True)}


def _save(path: Path, about: Sequence[Mapping[str, object]], tensors: Sequence[Arrays]) -> None:
    arrays: dict[str, Array] = {}
    index = []
    for each, tensor in zip(about, tensors, strict=True):
        names = {}
        for name, array in tensor.items():
            names[name] = f"a{len(arrays)}"
            arrays[names[name]] = _plain(array)
        index.append({**each, "arrays": names})
    arrays[_INDEX] = np.array(json.dumps(index))
    np.savez(path, allow_pickle=False, **arrays)


def _load(path: Path) -> tuple[list[dict[str, Any]], list[Arrays]]:
    with np.load(path, allow_pickle=False) as file:
        index = json.loads(str(file[_INDEX]))
        return index, [{name: file[key] for name, key in each["arrays"].items()} for each in index]


def _plain(array: Array) -> Array:
    """Texts as fixed-width ones: objects would be pickled."""
    if array.dtype != object:
        return array
    texts = [each.decode() if isinstance(each, bytes) else str(each) for each in array.ravel().tolist()]
    return np.array(texts, dtype=np.str_).reshape(array.shape)
