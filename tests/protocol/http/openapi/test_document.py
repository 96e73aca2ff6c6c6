"""The document as a whole: valid OpenAPI, and the whole route table in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from protocol.http.openapi.console_schemas import CONSOLE_OPERATIONS
from protocol.http.openapi.operations import OPERATIONS, shared_path
from protocol.http.routes import CONSOLE, METRICS, ROUTES
from tests.protocol.http.openapi.samples import ADD_SUB, MODELS, TOKENS, document, operations

WHOLE = document(*MODELS, asset_names=("page.js",))


@pytest.mark.slow
@pytest.mark.parametrize("models", [(), MODELS], ids=["no models", "models"])
@pytest.mark.parametrize("needs_key", [False, True])
def test_it_is_valid(models: tuple[Any, ...], needs_key: bool) -> None:
    made = document(*models, asset_names=("page.js",), needs_key=needs_key)
    assert [str(error) for error in OpenAPIV31SpecValidator(made).iter_errors()] == []
    assert json.loads(json.dumps(made)) == made


def test_every_route_is_an_operation() -> None:
    """And without models there is nothing else."""
    there = {(path, method) for path, method, _ in operations(document())}
    assert there == {(route.path, route.method.lower()) for route in (*ROUTES, METRICS, *CONSOLE)}


def test_every_route_is_described() -> None:
    """No route without an entry, no entry without a route."""
    assert {f"{route.method} {shared_path(route.path)}" for route in (*ROUTES, METRICS)} == set(OPERATIONS)
    assert {f"{route.method} {shared_path(route.path)}" for route in CONSOLE} == set(CONSOLE_OPERATIONS)


def test_every_operation_is_complete() -> None:
    """It has a tag, a line for people, an answer, a way to fail whose body is an error, and its path's parameters."""
    tags = {tag["name"] for tag in WHOLE["tags"]}
    identities = [operation["operationId"] for _, _, operation in operations(WHOLE)]
    assert len(set(identities)) == len(identities)
    for path, _, operation in operations(WHOLE):
        assert set(operation["tags"]) <= tags
        assert operation["summary"]
        responses = operation["responses"].keys()
        assert "4XX" in responses
        assert len(responses & {"200", "202"}) == 1
        in_path = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert in_path == {part.strip("{}") for part in path.split("/") if part.startswith("{")}
    for response in WHOLE["components"]["responses"].values():
        assert response["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}


def references(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(references, value))
    if isinstance(value, dict):
        here = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return here.union(*map(references, value.values()))
    return set()


def test_components_are_there_and_used() -> None:
    components = WHOLE["components"]
    known = {f"#/components/{kind}/{name}" for kind, entries in components.items() for name in entries}
    assert references(WHOLE) == known


def test_models_come_first() -> None:
    """In the page and in the look-up of tools a model's own operation goes before the one for all models."""
    made = document(ADD_SUB, TOKENS)
    assert [tag["name"] for tag in made["tags"][:2]] == ["Model: add_sub", "Model: tokens"]
    paths = list(made["paths"])
    assert paths.index("/v2/models/add_sub/infer") < paths.index("/v2/models/{model_name}/infer")


@pytest.mark.parametrize(
    ("path", "method", "statuses"),
    [
        ("/v2", "get", {"200", "4XX"}),
        ("/v2/health/live", "get", {"200", "400", "503", "4XX"}),
        ("/v2/models/{model_name}/config", "get", {"200", "400", "404", "503", "4XX"}),
        ("/v2/models/{model_name}/infer", "post", {"200", "400", "404", "500", "501", "503", "504", "4XX"}),
        ("/v2/models/add_sub/infer", "post", {"200", "400", "404", "500", "501", "503", "504", "4XX"}),
        ("/v2/systemsharedmemory/status", "get", {"200", "4XX"}),
        ("/v2/docs/openapi.json", "get", {"200", "503", "4XX"}),
    ],
)
def test_statuses(path: str, method: str, statuses: set[str]) -> None:
    assert set(WHOLE["paths"][path][method]["responses"]) == statuses


def test_both_forms_of_tensors() -> None:
    """JSON, and raw bytes behind JSON with the header that says where they begin."""
    for path in ("/v2/models/{model_name}/infer", "/v2/models/add_sub/infer"):
        operation = WHOLE["paths"][path]["post"]
        both = {"application/json", "application/octet-stream"}
        assert set(operation["requestBody"]["content"]) == both
        assert set(operation["responses"]["200"]["content"]) == both
        assert "Inference-Header-Content-Length" in {parameter["name"] for parameter in operation["parameters"]}
        assert "Inference-Header-Content-Length" in operation["responses"]["200"]["headers"]


def test_streams_have_events() -> None:
    """Each holds a response, which is the model's own where the model is known."""
    for model, path in (("{model_name}", "GenerateResponse"), ("tokens", None)):
        operation = WHOLE["paths"][f"/v2/models/{model}/generate_stream"]["post"]
        (content,) = operation["responses"]["200"]["content"].items()
        assert content[0] == "text/event-stream"
        response, error = content[1]["schema"]["properties"]["data"]["contentSchema"]["anyOf"]
        assert error == {"$ref": "#/components/schemas/Error"}
        if path:
            assert response == {"$ref": f"#/components/schemas/{path}"}
        else:
            assert response["properties"]["TOKEN"]["anyOf"][0] == {"type": "string"}
            assert content[1]["example"] == (
                'data: {"TOKEN": "text", "model_name": "tokens", "model_version": "2"}\n\n'
            )


def test_keys_are_told_of_where_they_are_needed() -> None:
    assert "security" not in WHOLE
    assert document(needs_key=True)["security"] == [{}, {"key": []}]
    assert document(needs_key=True)["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_nothing_of_another_host() -> None:
    assert "://" not in json.dumps(WHOLE)
