"""Step: what the source answers, in float64 where it can and in its own precision."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.datatypes import from_numpy_dtype
from trioton.convert.cases import Case, Way
from trioton.convert.programs.loading import LoadedSource, load_source, source_of
from trioton.convert.storage import load_cases, save_answers
from trioton.convert.tensors import Arrays


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """`wide`: whether to compute in float64; where that fails, the reference is the source's own precision."""
    source = load_source(source_of(arguments))
    cases = load_cases(Path(arguments["cases"]))
    questions = [case for case in cases if case.name == case.asks]
    own = {case.name: source.answer(case.inputs, is_wide=False) for case in questions}
    first = questions[0]
    again = source.answer(first.inputs, is_wide=False)
    unequal = [name for name, array in own[first.name].items() if not _equal(array, again[name])]
    if unequal:
        raise ValueError(
            f"the source answers the same input differently each time (output '{unequal[0]}'): is something random in "
            "it, or left in training mode?"
        )
    wide, reason = _wide(source, questions)
    reference = wide or own
    alone = {case.name: _alone(source, case, is_wide=bool(wide)) for case in cases if case.way is Way.ALONE}
    save_answers(Path(arguments["reference"]), {**reference, **alone})
    save_answers(Path(arguments["own"]), own)
    return {
        "precision": "float64" if wide else "the source's own",
        "reason": reason,
        "datatypes": {name: _datatype(array) for name, array in own[first.name].items()},
    }


def _wide(source: LoadedSource, questions: Sequence[Case]) -> tuple[dict[str, Arrays], str]:
    try:
        return {case.name: source.answer(case.inputs, is_wide=True) for case in questions}, ""
    except NotImplementedError as error:
        return {}, str(error)
    except Exception as error:
        traceback.print_exc()
        return {}, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _alone(source: LoadedSource, case: Case, *, is_wide: bool) -> Arrays:
    rows = [
        source.answer({name: array[row : row + 1] for name, array in case.inputs.items()}, is_wide=is_wide)
        for row in range(case.rows)
    ]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _datatype(array: Any) -> str:
    found = from_numpy_dtype(array.dtype)
    if found is None:
        raise ValueError(f"the source answers numpy's dtype {array.dtype}, which is no datatype of the protocol")
    return found.name


def _equal(one: Any, other: Any) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
