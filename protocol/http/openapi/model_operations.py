"""OpenAPI operations of each loaded model, with its own tensors as schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np

from protocol.core import TensorMetadata
from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.http.openapi import examples
from protocol.http.openapi.models import JsonObject, ModelDescription, datatype_of, shape_text

_FLOATS = (DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64)
_CLASSIFIABLE = frozenset(BY_PROTOCOL_NAME.values()) - {DataType.BOOL, DataType.BYTES, DataType.FP16, DataType.BF16}


@dataclass(frozen=True, slots=True)
class ModelOperation:
    """A model's own form of an operation that the route table has for all models; `path` is that of the table. The
    answer of a stream is any number of responses."""

    path: str
    request: JsonObject
    response: JsonObject
    request_example: JsonObject | None
    response_example: JsonObject | None
    is_stream: bool = False

    @property
    def action(self) -> str:
        return self.path.rpartition("/")[2]

    def path_of(self, model: ModelDescription) -> str:
        return self.path.replace("{model_name}", quote(model.name, safe=""))


def model_operations(model: ModelDescription) -> Iterator[ModelOperation]:
    """A model with one response for each request has `infer` and `generate`, every model has `generate_stream`."""
    base = "/v2/models/{model_name}"
    if not model.is_decoupled:
        yield ModelOperation(
            f"{base}/infer",
            _infer_request(model),
            _infer_response(model),
            examples.infer_request(model),
            examples.infer_response(model),
        )
    if {"id", "parameters"} & {tensor.name for tensor in model.metadata.inputs}:
        return  # these members have a meaning of their own there
    for name in ("generate_stream",) if model.is_decoupled else ("generate", "generate_stream"):
        yield ModelOperation(
            f"{base}/{name}",
            _generate_request(model),
            _generate_response(model),
            examples.generate_request(model),
            examples.generate_response(model),
            is_stream=name == "generate_stream",
        )


def element_schema(datatype: DataType) -> JsonObject:
    """One element of a tensor in JSON."""
    if datatype is DataType.BOOL:
        return {"type": "boolean"}
    if datatype is DataType.BYTES:
        return {"type": "string"}
    if datatype in _FLOATS:
        return {"type": "number"}
    bounds = np.iinfo(datatype.dtype)
    return {"type": "integer", "minimum": int(bounds.min), "maximum": int(bounds.max)}


def _infer_request(model: ModelDescription) -> JsonObject:
    tensors: list[JsonObject] = [
        {
            "title": tensor.name,
            "type": "object",
            "properties": {
                **_tensor_members(tensor),
                "shape": _input_shape_schema(tensor.shape, model.max_batch_size),
                "parameters": {"$ref": "#/components/schemas/InputParameters"},
            },
            "required": ["name", "datatype", "shape"],
        }
        for tensor in model.metadata.inputs
    ]
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "parameters": {"$ref": "#/components/schemas/RequestParameters"},
            "inputs": {
                "type": "array",
                "items": _one_of(tensors),
                "minItems": len(model.required_inputs),
                "maxItems": len(tensors),
            },
            "outputs": {
                "type": "array",
                "description": "Which outputs are wanted, and how; all where left out.",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "enum": [tensor.name for tensor in model.metadata.outputs]},
                        "parameters": {"$ref": "#/components/schemas/OutputParameters"},
                    },
                    "required": ["name"],
                },
            },
        },
        "required": ["inputs"],
    }


def _infer_response(model: ModelDescription) -> JsonObject:
    outputs = model.metadata.outputs
    tensors: list[JsonObject] = [
        {
            "title": tensor.name,
            "type": "object",
            "properties": {
                **_tensor_members(tensor),
                "parameters": {"$ref": "#/components/schemas/BinaryDataSize"},
            },
            "required": ["name", "datatype", "shape"],
        }
        for tensor in outputs
    ]
    if classifiable := [tensor.name for tensor in outputs if datatype_of(tensor) in _CLASSIFIABLE]:
        tensors.append(
            {
                "title": "classes",
                "description": "In place of an output whose `classification` was asked for.",
                "type": "object",
                "properties": {
                    "name": {"type": "string", "enum": classifiable},
                    "datatype": {"const": "BYTES"},
                    "shape": {"type": "array", "items": {"type": "integer"}},
                    "data": {"type": "array", "items": {"type": "string"}},
                    "parameters": {"$ref": "#/components/schemas/BinaryDataSize"},
                },
                "required": ["name", "datatype", "shape"],
            }
        )
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "model_name": {"const": model.name},
            "model_version": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": {"type": "array", "items": _one_of(tensors), "maxItems": len(outputs)},
        },
        "required": ["model_name", "model_version", "outputs"],
    }


def _one_of(schemas: list[JsonObject]) -> JsonObject:
    return {"oneOf": schemas} if schemas else {"type": "object"}  # a choice of nothing is no schema


def _tensor_members(tensor: TensorMetadata) -> JsonObject:
    return {
        "name": {"const": tensor.name},
        "datatype": {"const": tensor.datatype},
        "shape": _shape_schema(tensor.shape),
        "data": {
            "type": "array",
            "items": element_schema(datatype_of(tensor)),
            "description": "As many elements as `shape` says, row-major; nested lists are read as well.",
        },
    }


def _shape_schema(shape: tuple[int, ...]) -> JsonObject:
    return {
        "type": "array",
        "description": shape_text(shape),
        "items": {"type": "integer", "minimum": 0},
        "minItems": len(shape),
        "maxItems": len(shape),
    }


def _input_shape_schema(shape: tuple[int, ...], max_batch_size: int) -> JsonObject:
    """As exact as a client can be; an output's shape is the model's own affair, and not every tool reads this form."""
    dimensions: list[JsonObject] = [
        {"const": size} if size >= 0 else {"type": "integer", "minimum": 0, "maximum": 2**31 - 1} for size in shape
    ]
    if max_batch_size:
        dimensions[0] = {"type": "integer", "minimum": 1, "maximum": max_batch_size, "title": "batch size"}
    return {**_shape_schema(shape), **({"prefixItems": dimensions} if dimensions else {})}


def _generate_request(model: ModelDescription) -> JsonObject:
    return {
        "type": "object",
        "description": "Inputs by name; every other member becomes a parameter of the request.",
        "properties": {
            "id": {"type": "string"},
            "parameters": {"$ref": "#/components/schemas/GenerateParameters"},
            **{tensor.name: _scalar_or_list(tensor) for tensor in model.metadata.inputs},
        },
        "required": [tensor.name for tensor in model.required_inputs],
        "additionalProperties": {"$ref": "#/components/schemas/ParameterValue"},
    }


def _generate_response(model: ModelDescription) -> JsonObject:
    return {
        "type": "object",
        "properties": {
            **{tensor.name: _scalar_or_list(tensor) for tensor in model.metadata.outputs},
            "id": {"type": "string"},
            "model_name": {"const": model.name},
            "model_version": {"type": "string"},
        },
        "required": ["model_name", "model_version"],
    }


def _scalar_or_list(tensor: TensorMetadata) -> JsonObject:
    element = element_schema(datatype_of(tensor))
    return {
        "description": f"{tensor.datatype} {list(tensor.shape)}; the shape is made to fit the number of elements.",
        "anyOf": [element, {"type": "array", "items": element}],
    }
