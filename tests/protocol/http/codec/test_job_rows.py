"""Rows as inference requests: of lines in all their forms, of columns, of whole files; and results as lines."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.http.codec.job_rows import RowDecoder, result_line
from protocol.jobs.job import ItemError
from protocol.jobs.model_inputs import ModelInputs
from protocol.jobs.rows import FileRow, ResultRow
from protocol.messages import InferenceRequest, InferenceResponse, Tensor

INPUTS = ModelInputs("m", [("X", "FP32", (-1, 2)), ("T", "BYTES", (-1, 1))], is_batched=True)
BODY = {"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


def decoded(row: FileRow, inputs: ModelInputs = INPUTS) -> tuple[str, InferenceRequest]:
    return RowDecoder(inputs, 3, 1 << 20).decode(row)


def values(request: InferenceRequest) -> dict[str, Any]:
    return {tensor.name: tensor.as_numpy().tolist() for tensor in request.inputs}


@pytest.mark.parametrize(
    ("line", "custom_id", "wanted"),
    [
        ({"inputs": [BODY]}, "", {"X": [[1, 2]]}),
        ({"custom_id": "a", "inputs": [BODY], "id": "7"}, "a", {"X": [[1, 2]]}),
        ({"custom_id": 7, "inputs": {"X": [1, 2]}}, "7", {"X": [[1, 2]]}),
        ({"X": [1, 2], "T": "ä"}, "", {"X": [[1, 2]], "T": [["ä".encode()]]}),
        ({"X": [[1, 2], [3, 4]], "custom_id": "b"}, "b", {"X": [[1, 2], [3, 4]]}),
        ({"X": [1, 2], "T": None}, "", {"X": [[1, 2]]}),
        ({"X": [float("inf"), 2]}, "", {"X": [[float("inf"), 2]]}),
        ({"inputs": [{**BODY, "data": [float("inf"), 2]}], "custom_id": "c"}, "c", {"X": [[float("inf"), 2]]}),
    ],
)
def test_lines(line: dict[str, Any], custom_id: str, wanted: dict[str, Any]) -> None:
    found, request = decoded(FileRow(0, line=json.dumps(line).encode()))
    assert (found, values(request)) == (custom_id, wanted)
    assert (request.model_name, request.model_version) == ("m", 3)


def test_parameters_of_a_line() -> None:
    _, request = decoded(FileRow(0, line=b'{"inputs": {"X": [1, 2]}, "parameters": {"k": 1, "timeout": 5}}'))
    assert (request.parameters, request.timeout_microseconds) == ({"k": 1}, 5)


def test_numbers_and_texts_that_are_no_inputs_are_parameters() -> None:
    """As in the generate extension: they have no meaning to the server, whatever their names."""
    line = {"T": "ä", "max_tokens": 3, "temperature": 0.5, "user": "u", "stream": False, "sequence_id": 7, "note": None}
    custom_id, request = decoded(FileRow(0, line=json.dumps({**line, "custom_id": "c"}).encode()))
    assert (custom_id, values(request)) == ("c", {"T": [["ä".encode()]]})
    wanted = {"max_tokens": 3, "temperature": 0.5, "user": "u", "stream": False, "sequence_id": 7}
    assert (request.parameters, request.sequence_id) == (wanted, 0)
    _, request = decoded(FileRow(0, line=b'{"T": "x", "parameters": {"max_tokens": 4, "timeout": 5}}'))
    assert (request.parameters, request.timeout_microseconds) == ({"max_tokens": 4}, 5)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "failed to parse the request JSON"),
        (b"\xff", "failed to parse the request JSON"),
        (b"[1]", "attempt to access JSON non-object as object"),
        (b"{}", "the row has no input of model 'm', expected X, T"),
        (b'{"inputs": []}', "no input 'inputs'"),
        (b'{"Z": 1}', "the row has no input of model 'm', expected X, T"),
        (b'{"Z": [1]}', "model 'm' has no input 'Z', its inputs are X, T"),
        (b'{"X": [1]}', "expected a value of shape [2], got [1]"),
        (b'{"X": ["a", "b"]}', "attempt to access JSON non-number"),
        (b'{"X": [[1, 2], [3]]}', "shape does not match"),
        (b'{"X": {"a": 1}}', "input 'X'"),
        (b'{"X": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nesting"),
        (b'{"X": [1, 2], "custom_id": true}', "'custom_id': expected a text"),
        (b'{"X": [1, 2], "custom_id": "' + b"a" * 513 + b'"}', "'custom_id': expected a text of at most 512"),
        (b'{"X": [1, 2], "custom_id": "\\ud800"}', "failed to parse the request JSON buffer"),
        (b'{"X": [1, NaN], "custom_id": "\\ud800"}', "half of a surrogate pair"),
        (json.dumps({"X": [1, 2], "custom_id": "x" * 513}).encode(), "'custom_id': expected a text"),
        (json.dumps({"inputs": [BODY], "parameters": {"sequence_id": 7}}).encode(), "no part in a sequence"),
        (b'{"inputs": [{"name": "X"}]}', "member 'datatype' in inputs[0]"),
        (
            json.dumps({"inputs": [BODY], "outputs": [{"name": "Y", "parameters": {"classification": 1}}]}).encode(),
            "no 'classification'",
        ),
    ],
)
def test_lines_that_cannot_be_read(line: bytes, error: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        decoded(FileRow(0, line=line))
    assert error in str(raised.value)


def test_what_the_reader_could_not_read() -> None:
    with pytest.raises(InvalidArgument, match="too long"):
        decoded(FileRow(0, error="too long"))


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (FileRow(0, line=b'{"X": [1], "custom_id": "a"}'), "a"),
        (FileRow(0, line=b'{"X": [NaN], "custom_id": 7}'), "7"),
        (FileRow(0, line=b'{"X": [1], "custom_id": true}'), ""),
        (FileRow(0, line=b'{"X": [1]}'), ""),
        (FileRow(0, line=b'{"X": '), ""),
        (FileRow(0, values={"X": [1], "custom_id": b"c"}), "c"),
        (FileRow(0, error="none"), ""),
    ],
)
def test_the_name_of_what_is_no_request(row: FileRow, name: str) -> None:
    assert RowDecoder(INPUTS, -1, 1 << 20).name_of(row) == name


def test_columns() -> None:
    custom_id, request = decoded(FileRow(0, values={"X": np.array([1, 2]), "custom_id": b"k\xff", "other": 1}))
    assert (custom_id, values(request)) == ("k\ufffd", {"X": [[1, 2]]})
    with pytest.raises(InvalidArgument, match="no input of model 'm'"):
        decoded(FileRow(0, values={"x": 1}))


def test_an_input_may_have_the_name_of_a_member() -> None:
    inputs = ModelInputs("m", [("custom_id", "BYTES", (1,)), ("inputs", "FP32", (1,))], is_batched=False)
    custom_id, request = decoded(FileRow(0, line=b'{"custom_id": "x", "inputs": 1}'), inputs)
    assert (custom_id, values(request)) == ("", {"custom_id": [b"x"], "inputs": [1]})


def test_a_whole_file_goes_to_the_only_input() -> None:
    inputs = ModelInputs("m", [("FILE", "BYTES", (-1, 1))], is_batched=True)
    _, request = decoded(FileRow(1, values={"": b"\x89PNG"}), inputs)
    assert values(request) == {"FILE": [[b"\x89PNG"]]}
    with pytest.raises(InvalidArgument, match="whose only input is of datatype BYTES"):
        decoded(FileRow(1, values={"": b"\x89PNG"}))


def test_result_lines() -> None:
    response = InferenceResponse("m", 1, [Tensor("Y", DataType.FP32, (1,), np.array([2], np.float32).tobytes())])
    assert json.loads(result_line(ResultRow(3, "c", [response]))) == {
        "index": 3,
        "custom_id": "c",
        "response": {
            "model_name": "m",
            "model_version": "1",
            "outputs": [{"name": "Y", "datatype": "FP32", "shape": [1], "data": [2.0]}],
        },
    }
    assert json.loads(result_line(ResultRow(0, "", [])))["responses"] == []
    failed = json.loads(result_line(ResultRow(4, "", error=ItemError("INTERNAL", "no \udcff"))))
    assert failed == {"index": 4, "error": {"kind": "INTERNAL", "message": "no ?"}}
