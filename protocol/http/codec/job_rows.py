"""Codec of a job's rows: inference requests of lines and of columns, and results as lines of JSON. Pure.

A line is the body of an inference request, or an object of the inputs' names and values, alone or as the member
`inputs`; either may have a `custom_id`. Where they are alone, numbers and texts of other names are parameters, as in
the generate extension.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from protocol.errors import InvalidArgument
from protocol.http.codec.generate import encode_generate_response
from protocol.http.codec.infer import OutputEncoding, decode_infer_request, encode_infer_response
from protocol.http.codec.json_text import JsonReader
from protocol.http.codec.parameters import custom_parameter, set_parameters
from protocol.http.codec.tensor_json import decode_data
from protocol.jobs.job import MAX_CUSTOM_ID, ItemError, check_custom_id
from protocol.jobs.model_inputs import ModelInputs
from protocol.jobs.rows import FileRow, ResultRow
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, Tensor

CUSTOM_ID = "custom_id"


class _Head(msgspec.Struct):
    custom_id: Any = None
    inputs: msgspec.Raw = msgspec.Raw(b"")


_LIST_OF_OBJECTS = re.compile(rb"\[\s*\{")
_HEAD = msgspec.json.Decoder(_Head)
_OBJECT = JsonReader(dict[str, Any])


class RowDecoder:
    """Makes inference requests of rows, all to one model."""

    def __init__(self, inputs: ModelInputs, version: int, max_input_size: int) -> None:
        self._inputs = inputs
        self._version = version
        self._max_input_size = max_input_size

    def decode(self, row: FileRow) -> tuple[str, InferenceRequest]:
        """The row's `custom_id`, empty for none, and its request.

        Raises:
            InvalidArgument: what is wrong with the row.
        """
        if row.error:
            raise InvalidArgument(row.error)
        if row.line is not None:
            custom_id, request = self._of_line(row.line)
        else:
            custom_id, request = self._of_columns(row.values or {})
        if request.sequence_id:
            raise InvalidArgument("a job takes no part in a sequence, whose requests run in order")
        return custom_id, request

    def name_of(self, row: FileRow) -> str:
        """The `custom_id` of a row that is no request, as far as it can be read; else empty."""
        try:
            if row.line is not None:
                return _custom_id(_OBJECT.read(row.line).get(CUSTOM_ID))
            return _custom_id(_text((row.values or {}).get(CUSTOM_ID)))
        except InvalidArgument:
            return ""

    def _of_line(self, line: Buffer) -> tuple[str, InferenceRequest]:
        members: dict[str, Any] = {}
        try:
            head = _HEAD.decode(line)
            custom_id, is_body = head.custom_id, _LIST_OF_OBJECTS.match(bytes(head.inputs)[:64]) is not None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # it has NaN, or is none
            members = _OBJECT.read(line)
            custom_id, is_body = members.get(CUSTOM_ID), _is_body(members.get("inputs"))
        if is_body:
            return _custom_id(custom_id), self._of_body(line)
        members = members or _OBJECT.read(line)
        return self._of_values(members)

    def _of_body(self, line: Buffer) -> InferenceRequest:
        decoded = decode_infer_request(
            memoryview(line),
            None,
            model_name=self._inputs.model,
            model_version=self._version,
            max_input_size=self._max_input_size,
        )
        if decoded.placement is not None:
            raise InvalidArgument(
                "a job takes no shared memory and no 'classification': send tensors, take whole outputs"
            )
        return decoded.request

    def _of_values(self, members: Mapping[str, Any]) -> tuple[str, InferenceRequest]:
        values, parameters = members.get("inputs"), members.get("parameters")
        others: dict[str, Any] = {}
        if isinstance(values, dict) and "inputs" not in self._inputs.by_name:
            custom_id = members.get(CUSTOM_ID)
        else:
            custom_id = None if CUSTOM_ID in self._inputs.by_name else members.get(CUSTOM_ID)
            values, others = self._split(members)
        tensors = [self._json_tensor(name, value) for name, value in values.items() if value is not None]
        request = self._request(tensors)
        if isinstance(parameters, dict):
            set_parameters(request, parameters)
        request.parameters.update({name: custom_parameter(name, value) for name, value in others.items()})
        return _custom_id(custom_id), request

    def _split(self, members: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values of inputs, or what seems to be meant so, and parameters."""
        inputs = self._inputs.by_name
        values: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, value in members.items():
            if name in inputs:
                values[name] = value
            elif name == CUSTOM_ID or (name == "parameters" and isinstance(value, dict)):
                continue
            elif isinstance(value, (str, int, float)):
                others[name] = value
            else:
                values[name] = value
        return values, others

    def _json_tensor(self, name: str, value: Any) -> Tensor:
        wanted = self._inputs.named(name)
        shape = wanted.fit(_shape(value))
        data = decode_data(
            name,
            wanted.datatype,
            shape,
            value if isinstance(value, list) else [value],
            model=self._inputs.model,
            max_size=self._max_input_size,
        )
        return Tensor(name, wanted.datatype, shape, data)

    def _of_columns(self, values: Mapping[str, Any]) -> tuple[str, InferenceRequest]:
        """Columns that are no inputs are left out."""
        if tuple(values) == ("",):
            only = self._inputs.only()
            return "", self._request([only.tensor(values[""])])
        inputs = self._inputs.by_name
        custom_id = None if CUSTOM_ID in inputs else _text(values.get(CUSTOM_ID))
        tensors = [inputs[name].tensor(value) for name, value in values.items() if name in inputs]
        return _custom_id(custom_id), self._request(tensors)

    def _request(self, tensors: list[Tensor]) -> InferenceRequest:
        if not tensors:
            raise InvalidArgument(
                f"the row has no input of model '{self._inputs.model}', expected {', '.join(self._inputs.by_name)}"
            )
        return InferenceRequest(self._inputs.model, tensors, self._version)


def _is_body(inputs: Any) -> bool:
    return isinstance(inputs, list) and bool(inputs) and isinstance(inputs[0], dict)


def _shape(value: Any) -> tuple[int, ...]:
    """Of nested lists, as their first members have it; what lies in them is counted when it is read."""
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _custom_id(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value)
    if isinstance(value, (bool, float, list, dict)):
        raise InvalidArgument(f"'custom_id': expected a text of at most {MAX_CUSTOM_ID} characters, got {text!r:.60}")
    check_custom_id(text)
    return text


def result_line(row: ResultRow) -> bytes:
    """One JSON object and a newline: `index`, `custom_id` where there is one, and `response`, `responses` or `error`.

    Raises:
        ServerError: a response cannot be written as JSON.
    """
    line: dict[str, Any] = {"index": row.index}
    if row.custom_id:
        line[CUSTOM_ID] = row.custom_id
    line.update(answer_members(row.responses) if row.error is None else {"error": error_json(row.error)})
    return msgspec.json.encode(line) + b"\n"


def answer_members(responses: Sequence[InferenceResponse]) -> dict[str, Any]:
    """The only response, or all of those that a decoupled model has given, as a member of an object."""
    found = [response_json(each) for each in responses]
    return {"response": found[0]} if len(found) == 1 else {"responses": found}


def error_json(error: ItemError) -> dict[str, str]:
    """Why a row has failed."""
    return {"kind": error.kind, "message": error.message}


def response_json(response: InferenceResponse, *, is_generate: bool = False) -> msgspec.Raw:
    """A response as a JSON object."""
    if is_generate:
        return msgspec.Raw(encode_generate_response(response))
    _, parts = encode_infer_response(response, OutputEncoding())
    return msgspec.Raw(b"".join(parts))
