"""All forms of perf_analyzer's input data."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.messages import encode_bytes_elements
from tests.trioton.perf.data.models import slots
from trioton.perf.caller import DataError
from trioton.perf.data.dataset import Dataset
from trioton.perf.data.input_json import InputJson
from trioton.perf.data.inputs import ModelSlots

INTS = slots(("A", "INT32", [2, 2]))
OPEN = slots(("A", "INT32", [-1, 2]))
FREE = slots(("A", "INT32", [-1, -1]))
TEXTS = slots(("A", "STRING", [2]))
FLOATS = slots(("A", "FP32", [2]))
BOOLS = slots(("A", "BOOL", [2]))


def read(folder: Path, model: ModelSlots, *documents: Any, **shapes: tuple[int, ...]) -> Dataset:
    paths = []
    for number, document in enumerate(documents):
        paths.append(folder / f"{number}.json")
        paths[-1].write_text(document if isinstance(document, str) else json.dumps(document))
    return InputJson(model, shapes).read(paths)


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


FORMS: dict[str, tuple[ModelSlots, Any, tuple[int, ...], list[Any]]] = {
    "flat": (INTS, [1, 2, 3, 4], (2, 2), [[1, 2], [3, 4]]),
    "nested": (INTS, [[1, 2], [3, 4]], (2, 2), [[1, 2], [3, 4]]),
    "base64": (INTS, b64(np.arange(4, dtype="<i4").tobytes()), (2, 2), [[0, 1], [2, 3]]),
    "content": (INTS, {"content": [1, 2, 3, 4]}, (2, 2), [[1, 2], [3, 4]]),
    "content in base64": (INTS, {"content": b64(np.arange(4, dtype="<i4").tobytes())}, (2, 2), [[0, 1], [2, 3]]),
    "base64 with a shape": (OPEN, {**b64(bytes(8)), "shape": [1, 2]}, (1, 2), [[0, 0]]),
    "content with a shape": (FREE, {"content": [1, 2, 3, 4], "shape": [4, 1]}, (4, 1), [[1], [2], [3], [4]]),
    "one variable dim is found": (OPEN, [1, 2, 3, 4, 5, 6], (3, 2), [[1, 2], [3, 4], [5, 6]]),
    "texts": (TEXTS, ["a", "ü"], (2,), [b"a", "ü".encode()]),
    "texts in base64": (TEXTS, b64(encode_bytes_elements([b"\xff", b""])), (2,), [b"\xff", b""]),
    "booleans": (BOOLS, [True, False], (2,), [True, False]),
    "booleans as numbers": (BOOLS, [1, 0], (2,), [True, False]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(tmp_path: Path, form: str) -> None:
    model, value, shape, expected = FORMS[form]
    (step,) = read(tmp_path, model, {"data": [{"A": value}]}).steps
    assert step.tensors["A"].shape == shape
    assert step.tensors["A"].as_numpy().tolist() == expected


def test_what_json_does_not_have(tmp_path: Path) -> None:
    (step,) = read(tmp_path, FLOATS, '{"data": [{"A": [NaN, -Infinity]}]}').steps
    first, second = step.tensors["A"].as_numpy().tolist()
    assert math.isnan(first)
    assert second == -math.inf


def test_a_shape_of_the_command_line_is_for_rows_that_say_none(tmp_path: Path) -> None:
    rows = [{"A": [1, 2, 3, 4]}, {"A": {"content": [1, 2, 3, 4], "shape": [4, 1]}}]
    dataset = read(tmp_path, FREE, {"data": rows}, A=(1, 4))
    assert [step.tensors["A"].shape for step in dataset.steps] == [(1, 4), (4, 1)]


def test_streams_of_several_files(tmp_path: Path) -> None:
    row = {"A": [1, 2, 3, 4]}
    dataset = read(tmp_path, INTS, {"data": [[row, row], [row]]}, {"data": [row, row, row]})
    assert [len(stream) for stream in dataset.streams] == [2, 1, 3]


def test_expected_outputs(tmp_path: Path) -> None:
    document = {"data": [{"A": [1, 2]}], "validation_data": [{"OUT": [3, 4]}]}
    (step,) = read(tmp_path, FLOATS, document).steps
    assert step.expected["OUT"].as_numpy().tolist() == [3.0, 4.0]


def test_times_and_sessions(tmp_path: Path) -> None:
    row = {"A": [1, 2], "timestamp": [1500], "session_id": "s", "delay": 20}
    (step,) = read(tmp_path, FLOATS, {"data": [row]}).steps
    assert (step.at, step.session, step.delay) == (1.5, "s", 0.02)


def test_an_input_may_be_called_as_a_member_is(tmp_path: Path) -> None:
    (step,) = read(tmp_path, slots(("delay", "FP32", [1])), {"data": [{"delay": [2]}]}).steps
    assert step.tensors["delay"].as_numpy().tolist() == [2.0]


@pytest.mark.parametrize("payload", [[{"prompt": "x"}], {"prompt": "x"}, ['{"prompt": "x"}']])
def test_bodies(tmp_path: Path, payload: Any) -> None:
    (step,) = read(tmp_path, slots(), {"data": [{"payload": payload}]}).steps
    assert step.body == {"prompt": "x"}


WRONG: dict[str, tuple[ModelSlots, Any, str]] = {
    "no JSON": (INTS, "{", "cannot be read as input data"),
    "too deep": (INTS, "[" * 100_000, "cannot be read as input data"),
    "no data": (INTS, {}, "expected an object with the list 'data'"),
    "nothing in it": (INTS, {"data": []}, "there is no data"),
    "no object": (INTS, {"data": [3]}, "stream 0, entry 0: expected an object of inputs, got 3"),
    "an input is missing": (INTS, {"data": [{}]}, "there is no data for input 'A' of model 'm'"),
    "an input too many": (INTS, {"data": [{"A": [1, 2, 3, 4], "B": [1]}]}, "model 'm' has no input 'B'; it has 'A'"),
    "too few": (INTS, {"data": [{"A": [1]}]}, r"'A' of shape \[2, 2\] expects 4 elements, got 1"),
    "texts for numbers": (INTS, {"data": [{"A": ["1", "2", "3", "4"]}]}, "expects INT32 elements"),
    "out of range": (INTS, {"data": [{"A": [1, 2, 3, 1 << 40]}]}, "expects INT32 elements"),
    "numbers for texts": (TEXTS, {"data": [{"A": [1, 2]}]}, "expects BYTES elements"),
    "no base64": (INTS, {"data": [{"A": {"b64": "?"}}]}, "expects base64"),
    "half an element": (INTS, {"data": [{"A": b64(b"123")}]}, "multiple of 4 bytes, got 3"),
    "texts that are cut": (TEXTS, {"data": [{"A": b64(b"\x09\0\0\0a")}]}, "4-byte little-endian length"),
    "neither content nor base64": (INTS, {"data": [{"A": {"shape": [1]}}]}, "expects 'content' or 'b64'"),
    "no shape": (FREE, {"data": [{"A": [1, 2]}]}, "give its shape"),
    "a shape that does not fit": (INTS, {"data": [{"A": {"content": [1], "shape": [1]}}]}, r"\[2, 2\], got \[1\]"),
    "a shape of texts": (INTS, {"data": [{"A": {"content": [1], "shape": ["1"]}}]}, "list of sizes"),
    "expected outputs of other streams": (
        INTS,
        {"data": [{"A": [1, 2, 3, 4]}], "validation_data": []},
        "as many entries as 'data'",
    ),
    "no time": (INTS, {"data": [{"A": [1, 2, 3, 4], "timestamp": "x"}]}, "expected milliseconds as 'timestamp'"),
    "no body": (slots(), {"data": [{"payload": [3]}]}, "expected a JSON object as 'payload'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told(tmp_path: Path, case: str) -> None:
    model, document, text = WRONG[case]
    with pytest.raises(DataError, match=text):
        read(tmp_path, model, document)
