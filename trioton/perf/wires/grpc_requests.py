"""gRPC messages of inference, prepared, and what of responses is looked at. Pure."""

from __future__ import annotations

from typing import Any

from protocol.errors import InvalidArgument
from protocol.messages import ParameterValue
from protocol.proto import message_class
from trioton.perf.caller import Payload, Region
from trioton.perf.target import Target
from trioton.perf.wires.h2 import prefixed
from trioton.perf.wires.http_requests import region_parameters, request_parameters

SERVICE = "/inference.GRPCInferenceService/"
FINAL = "triton_final_response"
# On requests of a stream: an answer comes for the end of the responses, too.
_WANTS_FINAL = "triton_enable_empty_final_response"
# The field `id`, which may come again at the end of a message: the last one counts.
_ID_TAG = b"\x1a"


def infer_message(payload: Payload, target: Target, *, wants_final: bool = False) -> bytes:
    """A serialized ModelInferRequest.

    Raises:
        InvalidArgument: the payload is text for other routes.
    """
    if payload.body is not None:
        raise InvalidArgument("inference takes tensors, not a JSON body")
    message: Any = message_class("inference.ModelInferRequest")()
    message.model_name, message.model_version, message.id = target.model, target.version, payload.id
    for tensor in payload.inputs:
        region = payload.input_regions.get(tensor.name)
        item = message.inputs.add(name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape)
        if region is None:
            message.raw_input_contents.append(bytes(tensor.data))
        else:
            _set_region(item.parameters, region)
    for name in (*payload.outputs, *(each for each in payload.output_regions if each not in payload.outputs)):
        item = message.outputs.add(name=name)
        if (region := payload.output_regions.get(name)) is not None:
            _set_region(item.parameters, region)
    parameters = request_parameters(payload)
    if wants_final:
        parameters[_WANTS_FINAL] = True
    for name, value in parameters.items():
        _set_parameter(message.parameters[name], value)
    serialized: bytes = message.SerializeToString()
    return serialized


def with_id(message: bytes, request_id: bytes) -> bytes:
    """The same message under another id, framed for gRPC."""
    return prefixed(message + _ID_TAG + bytes((len(request_id),)) + request_id)


def call_headers(method: str, authority: str, target: Target) -> list[tuple[str, str]]:
    """Those of all calls of a method."""
    return [
        (":method", "POST"),
        (":scheme", "https" if target.tls else "http"),
        (":path", method if method.startswith("/") else SERVICE + method),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "trioton-perf"),
        *((name.lower(), value) for name, value in target.headers),
    ]


def _set_region(parameters: Any, region: Region) -> None:
    for name, value in region_parameters(region).items():
        _set_parameter(parameters[name], value)


def _set_parameter(parameter: Any, value: ParameterValue) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value
