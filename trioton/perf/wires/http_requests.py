"""HTTP/1 requests, prepared: inference with binary tensors, the generate extension, OpenAI's routes. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import Tensor
from trioton.perf.caller import Payload, Region
from trioton.perf.target import Target, Wire

_FORBIDDEN = frozenset("\r\n\0")


def infer_path(target: Target, verb: str = "infer") -> str:
    """Of the target's model and version."""
    version = f"/versions/{quote(target.version, safe='')}" if target.version else ""
    return f"/v2/models/{quote(target.model, safe='')}{version}/{verb}"


def request(path: str, authority: str, headers: tuple[tuple[str, str], ...], body: bytes, content: str) -> bytes:
    """A whole POST."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {authority}", f"Content-Length: {len(body)}", f"Content-Type: {content}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if any(not _FORBIDDEN.isdisjoint(line) for line in lines):
        raise InvalidArgument("a header or path of HTTP has no line breaks")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def infer_request(payload: Payload, target: Target, authority: str) -> bytes:
    """Raises InvalidArgument: the payload is text for other routes."""
    if payload.body is not None:
        raise InvalidArgument("inference takes tensors, not a JSON body")
    members: dict[str, Any] = {"id": payload.id} if payload.id else {}
    members["inputs"] = [_input(tensor, payload.input_regions.get(tensor.name)) for tensor in payload.inputs]
    parameters = request_parameters(payload)
    names = [*payload.outputs, *(name for name in payload.output_regions if name not in payload.outputs)]
    if names:
        members["outputs"] = [_output(name, payload.output_regions.get(name)) for name in names]
    else:
        parameters["binary_data_output"] = True
    if parameters:
        members["parameters"] = parameters
    text = msgspec.json.encode(members)
    tail = [bytes(tensor.data) for tensor in payload.inputs if tensor.name not in payload.input_regions]
    headers = (*target.headers, ("Inference-Header-Content-Length", str(len(text))))
    body = b"".join([text, *tail])
    return request(target.path or infer_path(target), authority, headers, body, "application/octet-stream")


def generate_request(payload: Payload, target: Target, authority: str, *, is_streaming: bool) -> bytes:
    body = generate_body(payload) if payload.body is None else dict(payload.body)
    path = target.path or infer_path(target, "generate_stream" if is_streaming else "generate")
    return request(path, authority, target.headers, msgspec.json.encode(body), "application/json")


def openai_request(payload: Payload, target: Target, authority: str) -> bytes:
    """Chat completions, or text completions where the body has a prompt; streamed unless the body says otherwise.

    Raises:
        InvalidArgument: the payload has no body.
    """
    if payload.body is None:
        raise InvalidArgument("OpenAI's routes take a JSON body, not tensors: give one with messages or a prompt")
    body: dict[str, Any] = {"model": target.model, "stream": True, **payload.body}
    if body["stream"]:
        body.setdefault("stream_options", {"include_usage": True})
    route = "completions" if "prompt" in body else "chat/completions"
    path = target.path or f"/v1/{route}"
    return request(path, authority, target.headers, msgspec.json.encode(body), "application/json")


def generate_body(payload: Payload) -> dict[str, Any]:
    """Tensors as the generate extension has them: a value where there is one element, else a flat list."""
    body: dict[str, Any] = {**payload.parameters}
    for tensor in payload.inputs:
        values = tensor.as_numpy().reshape(-1).tolist()
        if tensor.datatype is DataType.BYTES:
            values = [value.decode(errors="replace") for value in values]
        body[tensor.name] = values[0] if len(values) == 1 else values
    return body


def request_parameters(payload: Payload) -> dict[str, Any]:
    """Those of the request, the fields among them that have parameters of their own."""
    parameters: dict[str, Any] = dict(payload.parameters)
    if payload.sequence_id:
        parameters |= {
            "sequence_id": payload.sequence_id,
            "sequence_start": payload.sequence_start,
            "sequence_end": payload.sequence_end,
        }
    if payload.priority:
        parameters["priority"] = payload.priority
    if payload.timeout_microseconds:
        parameters["timeout"] = payload.timeout_microseconds
    return parameters


def region_parameters(region: Region) -> dict[str, Any]:
    """Where a tensor lies in shared memory."""
    place = {"shared_memory_region": region.name, "shared_memory_byte_size": region.byte_size}
    return {**place, "shared_memory_offset": region.offset} if region.offset else place


def _input(tensor: Tensor, region: Region | None) -> dict[str, Any]:
    place = {"binary_data_size": tensor.byte_size} if region is None else region_parameters(region)
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.name,
        "shape": list(tensor.shape),
        "parameters": place,
    }


def _output(name: str, region: Region | None) -> dict[str, Any]:
    return {"name": name, "parameters": {"binary_data": True} if region is None else region_parameters(region)}


def is_streaming(wire: Wire, *, is_decoupled: bool) -> bool:
    """Whether responses come as events."""
    return wire is Wire.OPENAI or (wire is Wire.GENERATE and is_decoupled)
