"""Requests and responses of a measurement as JSON has them: for exports, and to compare with expected outputs."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.message import DecodeError

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import ServerError
from protocol.messages import Tensor
from protocol.proto import message_class
from trioton.perf.caller import Payload, Result
from trioton.perf.data.payloads import ExpectingPayload
from trioton.perf.data.sequences import Running
from trioton.perf.target import Wire


def payload_of(result: Result) -> Payload | None:
    """What its call was made of, where that is known."""
    key = result.call.key
    if isinstance(key, Running):
        return key.payload
    return key if isinstance(key, Payload) else None


def mismatch(wire: Wire, result: Result) -> str:
    """Which output is not what the data expects; empty where there is none. The outputs of a model with several
    responses are those of the last one."""
    payload = payload_of(result)
    if not isinstance(payload, ExpectingPayload) or result.error or result.is_cancelled:
        return ""
    found = output_of(wire, result.responses[-1]) if result.responses else {}
    for name, tensor in payload.expected.items():
        if name not in found:
            return f"there is no output '{name}', whose values the data has"
        if not _is_same(found[name], _values(tensor)):
            return f"output '{name}' is not what the data expects"
    return ""


def inputs_of(payload: Payload) -> dict[str, Any]:
    """By the names of inputs; of a JSON body its text."""
    if payload.body is not None:
        return {"payload": json.dumps(dict(payload.body))}
    return {tensor.name: _values(tensor) for tensor in payload.inputs if tensor.name not in payload.input_regions}


def output_of(wire: Wire, data: bytes) -> dict[str, Any]:
    """Of one response: by the names of outputs, or the text of an event. What cannot be read is left out."""
    try:
        match wire:
            case Wire.GRPC:
                return _of_message(message_class("inference.ModelInferResponse").FromString(data))
            case Wire.STREAM:
                message: Any = message_class("inference.ModelStreamInferResponse").FromString(data)
                return _of_message(message.infer_response)
            case Wire.HTTP:
                return _of_body(data)
            case _:
                text = data.decode(errors="replace")
                return {"response": text if text.endswith("\n") or text.startswith("{") else f"data: {text}\n\n"}
    except (ValueError, KeyError, TypeError, DecodeError, ServerError):
        return {}


def _of_message(message: Any) -> dict[str, Any]:
    contents = iter(message.raw_output_contents)
    found = {}
    for output in message.outputs:
        if "shared_memory_region" not in output.parameters:
            found[output.name] = _decoded(output.name, output.datatype, output.shape, next(contents, b""))
    return found


def _of_body(data: bytes) -> dict[str, Any]:
    """JSON, and after it the bytes of those outputs that have a size there."""
    _, end = json.JSONDecoder().raw_decode(data.decode("latin-1"))
    head, rest = json.loads(data[:end]), memoryview(data)[end:]
    found = {}
    for output in head.get("outputs", ()):
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[output["name"]] = _single(output.get("data", []), output["datatype"])
        else:
            found[output["name"]] = _decoded(output["name"], output["datatype"], output["shape"], rest[:size])
            rest = rest[size:]
    return found


def _decoded(name: str, datatype: str, shape: Any, data: Any) -> Any:
    return _values(Tensor(name, BY_PROTOCOL_NAME[datatype], tuple(shape), data))


def _values(tensor: Tensor) -> Any:
    values = tensor.as_numpy().reshape(-1).tolist()
    if tensor.datatype is DataType.BYTES:
        values = [value.decode(errors="replace") for value in values]
    return _single(values, tensor.datatype.name)


def _single(values: list[Any], datatype: str) -> Any:
    """One text stands alone."""
    return values[0] if datatype == "BYTES" and len(values) == 1 else values


def _is_same(one: Any, other: Any) -> bool:
    """With NaN the same as itself."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and (one == other or all(map(_is_same, one, other)))
    return bool(one == other or (one != one and other != other))
