"""Models to describe, and a document's schemas made ready for checking values against them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # ships no types

from protocol.core import ModelMetadata, ServerMetadata, TensorMetadata
from protocol.datatypes import BY_PROTOCOL_NAME
from protocol.http.openapi.document import build_document
from protocol.http.openapi.models import ModelDescription
from protocol.http.routes import CONSOLE, METRICS, ROUTES
from tests.sliced import finished

SERVER = ServerMetadata("trioton", "1.2.3", ())


def tensor(name: str, datatype: str = "FP32", *shape: int) -> TensorMetadata:
    return TensorMetadata(name, datatype, shape)


def model(
    name: str, inputs: Sequence[TensorMetadata], outputs: Sequence[TensorMetadata], **more: Any
) -> ModelDescription:
    return ModelDescription(ModelMetadata(name, ("1", "2"), "python", tuple(inputs), tuple(outputs)), **more)


ADD_SUB = model(
    "add_sub",
    [tensor("INPUT0", "FP32", -1, 16), tensor("INPUT1", "FP32", -1, 16)],
    [tensor("OUTPUT0", "FP32", -1, 16), tensor("OUTPUT1", "FP32", -1, 16)],
    max_batch_size=8,
)
ALL_TYPES = model(
    "types",
    [tensor(f"IN_{name}", name, -1) for name in BY_PROTOCOL_NAME],
    [tensor(name, name, -1) for name in BY_PROTOCOL_NAME],
    optional_inputs=frozenset({"IN_BOOL"}),
)
TOKENS = model("tokens", [tensor("TEXT", "BYTES", 1)], [tensor("TOKEN", "BYTES", 1)], is_decoupled=True)
IMAGES = model("a/b {c} é|`", [tensor("image", "FP32", -1, 3, -1, -1)], [tensor("class", "FP32", -1, 1000)])
CLOCK = model("clock", [], [tensor("NOW", "INT64")])
MODELS = (ADD_SUB, ALL_TYPES, TOKENS, IMAGES, CLOCK)


def document(*models: ModelDescription, **more: Any) -> dict[str, Any]:
    return finished(build_document((*ROUTES, METRICS, *CONSOLE), SERVER, models, **more))


def operations(made: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operation with its path and its method."""
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def request_content(made: dict[str, Any], path: str) -> dict[str, Any]:
    """The JSON form of a path's POST body: its schema, and its example if it has one."""
    content: dict[str, Any] = made["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return content


def response_content(made: dict[str, Any], path: str, method: str = "post") -> dict[str, Any]:
    content: dict[str, Any] = made["paths"][path][method]["responses"]["200"]["content"]["application/json"]
    return content


def errors(made: dict[str, Any], schema: dict[str, Any], value: Any) -> list[str]:
    """What is wrong with a value by a schema of the document."""
    validator = Draft202012Validator({**schema, "components": made["components"]})
    return [error.message for error in validator.iter_errors(value)]
