"""The OpenAPI document of a real server: valid, true of what the server does, and its examples can be sent.

Schemathesis makes requests out of the document, right and wrong ones. `OPENAPI_CASES` and `OPENAPI_SEED` in the
environment set how many, and which.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import APIOperation, BaseSchema, Case, GenerationMode, Response
from schemathesis.core.result import Ok
from schemathesis.openapi import from_url
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess

CASES = int(os.environ.get("OPENAPI_CASES", "150"))
SEED = int(os.environ.get("OPENAPI_SEED", "1"))

Operation: TypeAlias = APIOperation[Any, Any, Any, Any]

MODELS = ("add_sub", "completed", "onnx_bf16", "onnx_types", "python_types")
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
# Larger tensors than this are not made to fit their shape.
MAX_ELEMENTS = 4096


@pytest.fixture(scope="module")
def url(repository: Path) -> Iterator[str]:
    """A server of its own, because the requests change settings, register shared memory and load models."""
    flags = ("--model-control-mode=explicit", "--allow-client-shm=true", *(f"--load-model={name}" for name in MODELS))
    with ServerProcess(*flags, repository=repository) as process:
        yield f"http://{process.addresses['http']}"


@pytest.fixture(scope="module")
def schema(url: str) -> BaseSchema:
    return from_url(f"{url}/v2/docs/openapi.json", config=schemathesis.Config())


def operations(schema: BaseSchema) -> list[Operation]:
    found = []
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result.err()
        found.append(result.ok())
    return found


def test_the_document_is_valid(schema: BaseSchema) -> None:
    assert [str(error) for error in OpenAPIV31SpecValidator(schema.raw_schema).iter_errors()] == []


def test_every_model_has_operations_of_its_own(schema: BaseSchema) -> None:
    for name in MODELS:
        for action in ("infer", "generate", "generate_stream"):
            assert f"/v2/models/{name}/{action}" in schema.raw_schema["paths"]


def test_examples_can_be_sent_as_they_are(url: str, schema: BaseSchema) -> None:
    """Each is answered as the document says it is."""
    sent = 0
    for operation in operations(schema):
        content = operation.definition.raw.get("requestBody", {}).get("content", {}).get("application/json", {})
        if "example" in content:
            case = operation.Case(body=content["example"], media_type="application/json")
            response = case.call(base_url=url, timeout=TIMEOUT_SECONDS)
            assert response.status_code == 200, (operation.label, response.text)
            case.validate_response(response, checks=CHECKS)
            sent += 1
    assert sent == 3 * len(MODELS)


def test_requests_of_every_kind(url: str, schema: BaseSchema) -> None:
    """Whatever is sent, the answer is one that the document tells of, and the server is never at fault."""
    all_operations = operations(schema)
    statuses: Counter[int] = Counter()
    examples = math.ceil(CASES / (2 * len(all_operations)))
    for operation in all_operations:
        for mode in GenerationMode:
            with_some_cases(operation, mode, examples, url, statuses)
    print(f"{CASES} cases with seed {SEED}:", dict(sorted(statuses.items())))
    assert {200, 400, 404} <= set(statuses)
    assert sum(statuses.values()) >= CASES // 2
    test_examples_can_be_sent_as_they_are(url, schema)


def with_some_cases(
    operation: Operation, mode: GenerationMode, examples: int, url: str, statuses: Counter[int]
) -> None:
    """Send requests for one operation that fit its schemas, or that do not."""

    @seed(SEED)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), model=st.sampled_from([None, *MODELS]))
    def send(case: Case[Operation], model: str | None) -> None:
        adapt(case, model, is_right=mode is GenerationMode.POSITIVE)
        response = case.call(base_url=url, timeout=TIMEOUT_SECONDS)
        statuses[response.status_code] += 1
        check(case, response)

    try:
        send()
    except Unsatisfiable:  # nothing can be wrong with a GET without parameters
        assert mode is GenerationMode.NEGATIVE


def adapt(case: Case[Operation], model: str | None, *, is_right: bool) -> None:
    """Make most requests go to models that are there, and right JSON tensors have as many elements as their shape says
    and nothing behind them: chance would not. What loads and unloads keeps its made-up names."""
    parameters = case.path_parameters
    if model is not None and parameters and "model_name" in parameters and "/repository/" not in case.path:
        case.path_parameters = {**parameters, "model_name": model}
        if "model_version" in parameters and is_right:
            case.path_parameters["model_version"] = 1
    if is_right and case.path.endswith("/infer") and case.media_type == "application/json":
        case.headers.pop("Inference-Header-Content-Length", None)
        body: Any = case.body
        case.body = {**body, "inputs": [fitted(entry) for entry in body["inputs"]]}


def fitted(entry: dict[str, Any]) -> dict[str, Any]:
    """An input whose data is repeated or cut to the length that its shape asks for."""
    shape = [int(size) for size in entry["shape"]]  # 2.0 is an integer, too, to a schema
    data, count = entry.get("data"), math.prod(shape)
    if not data or not 0 < count <= MAX_ELEMENTS:
        return entry
    return {**entry, "shape": shape, "data": (data * math.ceil(count / len(data)))[:count]}


def check(case: Case[Operation], response: Response) -> None:
    """The answer fits the document; and of what the document owns up to, only refusals are right, never a fault."""
    # The protocol writes these words for floats that JSON has no word for: such an answer fits no schema.
    is_json = b"Infinity" not in response.content and b"NaN" not in response.content
    case.validate_response(response, checks=CHECKS if is_json else CHECKS[:2])
    assert response.status_code < 500 or response.status_code in (501, 503), (case.as_curl_command(), response.text)
