"""OpenAPI component schemas of the JSON requests and responses.

Where the codec or the core has a structure of its own, its schema is made from that, so that the two cannot differ; the
rest is written here. Source: the Open Inference Protocol and Triton's extensions of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

import msgspec

from protocol.core import ModelMetadata, ModelStatistics, ServerMetadata
from protocol.datatypes import BY_PROTOCOL_NAME
from protocol.http.codec.infer import InferBody, ResponseBody
from protocol.http.openapi.batch_schemas import batch_schemas
from protocol.http.openapi.console_schemas import console_schemas
from protocol.http.openapi.job_schemas import job_schemas
from protocol.http.openapi.openai_schemas import openai_schemas
from protocol.server_settings import LOG_FORMATS, LogSettings
from protocol.shared_memory.regions import CudaRegion, SystemRegion

Schema: TypeAlias = dict[str, Any]

_PREFIX = "#/components/schemas/"
_STRING: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}

_STRUCTURES = (
    InferBody,
    ResponseBody,
    ServerMetadata,
    ModelMetadata,
    ModelStatistics,
    LogSettings,
    SystemRegion,
    CudaRegion,
)
# The names that the document gives to structures whose own is one of the code.
_NAMES = {"InferBody": "InferRequest", "ResponseBody": "InferResponse"}


def reference(name: str) -> Schema:
    return {"$ref": _PREFIX + name}


def event_of(schema: Schema, error: str = "Error") -> Schema:
    """A server-sent event whose data is such a value as JSON, or an error of this schema."""
    data = {**_STRING, "contentMediaType": "application/json", "contentSchema": {"anyOf": [schema, reference(error)]}}
    return _object({"data": data}, "data", description="One event; what is in `data` is JSON.")


@cache
def component_schemas() -> Mapping[str, Schema]:
    """Every schema that the document refers to, by its name; made once, which takes 10 ms."""
    _, made = msgspec.json.schema_components(_STRUCTURES, ref_template=_PREFIX + "{name}")
    schemas = {_NAMES.get(name, name): _tidy(schema) for name, schema in made.items()}
    for name, members in _REFINEMENTS.items():
        schemas[name]["properties"].update(members)
    # Both are left out where there is nothing to say.
    schemas["InferResponse"]["required"] = ["model_name", "model_version", "outputs"]
    openai = {name: _tidy(schema) for name, schema in openai_schemas(_PREFIX).items()}
    return {
        **schemas,
        **_written(),
        **job_schemas(_PREFIX),
        **openai,
        **batch_schemas(_PREFIX),
        **console_schemas(_PREFIX),
    }


def _tidy(value: Any) -> Any:
    """A schema as a person likes to read it: without defaults, and without null in the place of what may be absent."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {key: _tidy(item) for key, item in value.items() if key != "default"}
    choices = schema.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        rest = [choice for choice in choices if choice != {"type": "null"}]
        without_null = rest[0] if len(rest) == 1 else {"anyOf": rest}
        return {**{key: item for key, item in schema.items() if key != "anyOf"}, **without_null}
    if isinstance(target := schema.get("$ref"), str):
        name = target.removeprefix(_PREFIX)
        schema["$ref"] = _PREFIX + _NAMES.get(name, name)
    if schema.get("title") in _NAMES:
        schema["title"] = _NAMES[schema["title"]]
    if schema.get("required") == []:
        del schema["required"]
    return schema


def _object(members: Mapping[str, Schema], *required: str, **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": dict(members),
        **({"required": list(required)} if required else {}),
        **more,
    }


def _list(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, **more}


_DATATYPE: Schema = {"type": "string", "enum": list(BY_PROTOCOL_NAME)}

# What the code's types say too loosely, because it is checked by hand.
_REFINEMENTS: Mapping[str, Mapping[str, Schema]] = {
    "InferRequest": {"parameters": reference("RequestParameters")},
    "RequestedInput": {
        "datatype": _DATATYPE,
        "shape": _list(_COUNT),
        "data": _list(
            {"type": ["number", "string", "boolean", "array"]},
            description="As many elements as `shape` says, row-major, flat or nested in any way.",
        ),
    },
    "OutputBody": {"datatype": _DATATYPE, "shape": _list(_COUNT), "data": {"type": "array"}},
    "TensorMetadata": {"datatype": _DATATYPE, "shape": _list({"type": "integer", "minimum": -1})},
}


def _written() -> dict[str, Schema]:
    return {
        "OpenApi": _object({"openapi": _STRING, "info": {"type": "object"}, "paths": {"type": "object"}}, "openapi"),
        "Overview": _object(
            {"name": _STRING, "version": _STRING, "paths": {"type": "object", "additionalProperties": _STRING}},
            "name",
            "paths",
            description="Where things are; the other services have members with their ports.",
        ),
        "Error": _object(
            {"error": _STRING, "request_id": _STRING},
            "error",
            description="What was wrong, in a sentence, and the request's id as in `x-request-id`.",
        ),
        "ServerLive": _object({"live": {"type": "boolean"}}, "live"),
        "ServerReady": _object({"ready": {"type": "boolean"}}, "ready"),
        "ModelReady": _object({"name": _STRING, "ready": {"type": "boolean"}}, "name", "ready"),
        "ParameterValue": {
            "description": "A parameter of the client's own, forwarded to the model.",
            "type": ["string", "integer", "number", "boolean"],
        },
        "RequestParameters": _object(
            {
                "sequence_id": {
                    "description": "The sequence that the request belongs to; 0 or an empty string for none.",
                    "anyOf": [{"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, _STRING],
                },
                "sequence_start": _BOOLEAN,
                "sequence_end": _BOOLEAN,
                "priority": {**_COUNT, "description": "1 is the highest, 0 the model's default."},
                "timeout": {**_COUNT, "description": "In microseconds."},
                "binary_data_output": {
                    **_BOOLEAN,
                    "description": "Whether outputs go in the binary tail where `outputs` is left out.",
                },
            },
            additionalProperties=reference("ParameterValue"),
        ),
        "GenerateParameters": _object(
            {},
            description="Members of the request one level up: inputs, or parameters.",
            additionalProperties={"type": ["string", "integer", "number", "boolean", "array"]},
        ),
        "GenerateRequest": _object(
            {"id": _STRING, "parameters": reference("GenerateParameters")},
            description="Inputs by name, each a value or a list of values; every other member becomes a parameter.",
            additionalProperties={"type": ["string", "integer", "number", "boolean", "array"]},
        ),
        "GenerateResponse": _object(
            {"id": _STRING, "model_name": _STRING, "model_version": _STRING},
            "model_name",
            "model_version",
            description="Outputs and response parameters by name; an output of one element is a bare value.",
        ),
        "ModelConfig": _object(
            {
                "name": _STRING,
                "platform": _STRING,
                "backend": _STRING,
                "max_batch_size": {"type": "integer"},
                "input": _list({"type": "object"}),
                "output": _list({"type": "object"}),
            },
            "name",
            description="The completed model configuration, with the names of `config.pbtxt`.",
        ),
        "StatisticsResponse": _object({"model_stats": _list(reference("ModelStatistics"))}, "model_stats"),
        "CancelResponse": _object(
            {"cancelled": {**_COUNT, "description": "How many requests were stopped."}}, "cancelled"
        ),
        "IndexRequest": _object({"ready": {**_BOOLEAN, "description": "Whether to list only what is ready."}}),
        "IndexResponse": _list(
            _object(
                {
                    "name": _STRING,
                    "namespace": {**_STRING, "description": "With `--model-namespacing`."},
                    "version": _STRING,
                    "state": {"type": "string", "enum": ["UNKNOWN", "READY", "UNAVAILABLE", "LOADING", "UNLOADING"]},
                    "reason": _STRING,
                },
                "name",
            ),
            description="An entry for each known version; a model that was never loaded has only its name.",
        ),
        "Repository": _object(
            {
                "path": {**_STRING, "description": "A directory, as the server finds it."},
                "model_names": {
                    "type": "object",
                    "additionalProperties": _STRING,
                    "description": "Names of directories in it, each with the name that its model is served under.",
                },
            },
            "path",
        ),
        "Repositories": _list(reference("Repository")),
        "LoadRequest": _object(
            {
                "parameters": _object(
                    {"config": {**_STRING, "description": "A model configuration as JSON text."}},
                    patternProperties={
                        "^file:": {**_STRING, "description": "`file:<version>/<name>`: a file's content as base64."}
                    },
                )
            }
        ),
        "UnloadRequest": _object({"parameters": _object({"unload_dependents": _BOOLEAN})}),
        "SystemRegions": _list(reference("SystemRegion")),
        "CudaRegions": _list(reference("CudaRegion")),
        "SystemRegistration": _object(
            {
                "key": {**_STRING, "description": "The name of the segment, as `shm_open` takes it."},
                "offset": {**_COUNT, "description": "In bytes, 0 where left out."},
                "byte_size": _COUNT,
            },
            "key",
            "byte_size",
        ),
        "CudaRegistration": _object(
            {
                "raw_handle": _object(
                    {"b64": {**_STRING, "description": "The 64 bytes of a `cudaIpcMemHandle_t` as base64."}}, "b64"
                ),
                "device_id": _COUNT,
                "byte_size": _COUNT,
            },
            "raw_handle",
            "device_id",
            "byte_size",
        ),
        "TraceSettings": _object(_trace_members(_STRING, {"trace_file": _STRING, "trace_mode": _STRING})),
        "TraceSettingsUpdate": _object(
            _trace_members({"type": ["string", "null"]}, {}),
            description="Only what is named changes; null makes a setting follow the global one, or its start value.",
        ),
        "LogSettingsUpdate": _object(
            {
                "log_info": _BOOLEAN,
                "log_warning": _BOOLEAN,
                "log_error": _BOOLEAN,
                "log_verbose_level": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
                "log_format": {"type": "string", "enum": list(LOG_FORMATS)},
            },
            description="Only what is named changes.",
        ),
    }


def _trace_members(number: Schema, more: Mapping[str, Schema]) -> dict[str, Schema]:
    return {
        "trace_level": _list({"type": "string", "enum": ["OFF", "TIMESTAMPS", "TENSORS"]}),
        "trace_rate": {**number, "description": "Every n-th request is traced."},
        "trace_count": {**number, "description": "How many traces are still to be made, -1 for no end."},
        "log_frequency": {**number, "description": "Traces in each file, 0 for all in one."},
        **more,
    }
