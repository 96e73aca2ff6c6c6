"""What the document says of each loaded model."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # ships no types

from protocol.core import ModelMetadata
from protocol.datatypes import DataType
from protocol.http.openapi.examples import MAX_EXAMPLE_ELEMENTS, example_shape
from protocol.http.openapi.model_operations import element_schema
from protocol.http.openapi.models import ModelDescription
from tests.protocol.http.openapi.samples import (
    ADD_SUB,
    ALL_TYPES,
    CLOCK,
    IMAGES,
    MODELS,
    TOKENS,
    document,
    errors,
    model,
    request_content,
    response_content,
    tensor,
)

INFER = "/v2/models/add_sub/infer"
GENERATE = "/v2/models/add_sub/generate"


@pytest.mark.parametrize(
    ("datatype", "schema"),
    [
        (DataType.BOOL, {"type": "boolean"}),
        (DataType.BYTES, {"type": "string"}),
        (DataType.FP16, {"type": "number"}),
        (DataType.BF16, {"type": "number"}),
        (DataType.FP64, {"type": "number"}),
        (DataType.UINT8, {"type": "integer", "minimum": 0, "maximum": 255}),
        (DataType.INT64, {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}),
    ],
)
def test_elements(datatype: DataType, schema: dict[str, Any]) -> None:
    assert element_schema(datatype) == schema


@pytest.mark.parametrize(
    ("shape", "example"),
    [
        ((), ()),
        ((-1, 16), (1, 16)),
        ((2, -1, 128), (2, 1, 128)),
        ((-1, 3, -1, -1), (1, 3, 32, 32)),
        ((-1, 1, 28, -1), (1, 1, 28, 32)),
        ((-1, 77, -1, -1), (1, 77, 1, 1)),
        ((0, -1), (0, 1)),
    ],
)
def test_shapes_of_examples(shape: tuple[int, ...], example: tuple[int, ...]) -> None:
    described = tensor("X", "FP32", *shape)
    assert example_shape(model("m", [described], []), described) == example


@pytest.mark.parametrize(
    ("max_batch_size", "shape", "dims", "example"),
    [
        (0, (-1, -1), [1, 512], (1, 512)),
        (8, (-1, -1), [512], (1, 512)),
        (8, (-1, 3, -1, -1), [3, 64, 96], (1, 3, 64, 96)),
        (0, (-1, 16), [2, 99], (2, 16)),
        (0, (-1, 16), [2], (1, 16)),
    ],
    ids=["no batching", "batching", "an image", "a wrong size", "a wrong rank"],
)
def test_a_warm_up_sample_gives_the_shape(
    max_batch_size: int, shape: tuple[int, ...], dims: list[int], example: tuple[int, ...]
) -> None:
    """Where it fits; a sample's dimensions are without the batch's."""
    described = tensor("X", "FP32", *shape)
    config = {
        "max_batch_size": max_batch_size,
        "input": [{"name": "X", "optional": False}],
        "model_warmup": [{"name": "s", "inputs": {"X": {"data_type": "TYPE_FP32", "dims": dims, "zero_data": True}}}],
    }
    made = ModelDescription.of(ModelMetadata("m", ("1",), "python", (described,), ()), config, is_decoupled=False)
    assert example_shape(made, described) == example


def test_a_configuration_says_what_is_optional() -> None:
    config = {"input": [{"name": "A", "optional": True}, {"name": "B", "optional": False}]}
    metadata = ModelMetadata("m", ("1",), "python", (tensor("A"), tensor("B")), ())
    made = ModelDescription.of(metadata, config, is_decoupled=True)
    assert [tensor.name for tensor in made.required_inputs] == ["B"]
    assert (made.max_batch_size, made.is_decoupled) == (0, True)


@pytest.mark.parametrize(
    ("described", "actions"),
    [
        (ADD_SUB, {"infer", "generate", "generate_stream"}),
        (TOKENS, {"generate_stream"}),
        (model("m", [tensor("id", "BYTES", 1)], []), {"infer"}),
        (model("m", [tensor("parameters", "BYTES", 1)], []), {"infer"}),
    ],
    ids=["plain", "decoupled", "an input named id", "an input named parameters"],
)
def test_operations(described: ModelDescription, actions: set[str]) -> None:
    """Only those that can work: a decoupled model streams, a name with a meaning of its own is no input of generate."""
    made = document(described)
    prefix = f"/v2/models/{described.name}/"
    assert {path.removeprefix(prefix) for path in made["paths"] if path.startswith(prefix)} == actions


def test_an_example_that_can_be_sent() -> None:
    ones = [1] * 16
    assert request_content(document(ADD_SUB), INFER)["example"] == {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": ones},
            {"name": "INPUT1", "datatype": "FP32", "shape": [1, 16], "data": ones},
        ]
    }
    assert request_content(document(ADD_SUB), GENERATE)["example"] == {"INPUT0": ones, "INPUT1": ones}


def test_optional_inputs_are_left_out_of_examples() -> None:
    example = request_content(document(ALL_TYPES), "/v2/models/types/infer")["example"]
    names = {entry["name"] for entry in example["inputs"]}
    assert "IN_BOOL" not in names
    assert len(names) == len(ALL_TYPES.metadata.inputs) - 1


def test_large_models_have_no_example() -> None:
    made = document(
        model("small", [tensor("X", "FP32", MAX_EXAMPLE_ELEMENTS)], []),
        model("large", [tensor("X", "FP32", MAX_EXAMPLE_ELEMENTS), tensor("Y", "FP32", 1)], []),
    )
    assert "example" in request_content(made, "/v2/models/small/infer")
    assert "example" not in request_content(made, "/v2/models/large/infer")


@pytest.mark.parametrize("described", MODELS, ids=lambda described: described.name)
def test_examples_fit_their_schemas(described: ModelDescription) -> None:
    made = document(described)
    count = 0
    for path, methods in made["paths"].items():
        post = methods.get("post", {})
        if described.tag in post.get("tags", ()):
            contents = [request_content(made, path)]
            if not path.endswith("generate_stream"):
                contents.append(response_content(made, path))
            for content in contents:
                assert errors(made, content["schema"], content["example"]) == []
                count += 1
    assert count >= 1


def request_with(**changes: Any) -> dict[str, Any]:
    """A request for `add_sub` whose first input is changed."""
    entries = [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "data": [1.5] * 16} for name in ("INPUT0", "INPUT1")
    ]
    entries[0].update(changes)
    return {"inputs": entries}


@pytest.mark.parametrize(
    ("request_body", "is_right"),
    [
        (request_with(), True),
        (request_with(shape=[8, 16]), True),
        (request_with(shape=[9, 16]), False),
        (request_with(shape=[0, 16]), False),
        (request_with(shape=[1, 15]), False),
        (request_with(shape=[16]), False),
        (request_with(shape=[1, 16, 1]), False),
        (request_with(datatype="FP64"), False),
        (request_with(name="INPUT2"), False),
        (request_with(data=["1.5"] * 16), False),
        ({"inputs": request_with()["inputs"][:1]}, False),
        ({"inputs": request_with()["inputs"][::-1]}, True),
        ({**request_with(), "id": "7", "parameters": {"priority": 1, "mine": "x"}}, True),
        ({**request_with(), "outputs": [{"name": "OUTPUT1", "parameters": {"classification": 3}}]}, True),
        ({**request_with(), "outputs": [{"name": "OUTPUT2"}]}, False),
        ({}, False),
    ],
)
def test_the_schema_of_a_request(request_body: dict[str, Any], is_right: bool) -> None:
    made = document(ADD_SUB)
    assert (errors(made, request_content(made, INFER)["schema"], request_body) == []) is is_right


@pytest.mark.parametrize(
    ("output", "is_right"),
    [
        ({"name": "OUTPUT0", "datatype": "FP32", "shape": [3, 16], "data": [0.5] * 48}, True),
        ({"name": "OUTPUT0", "datatype": "FP32", "shape": [3, 16], "parameters": {"binary_data_size": 192}}, True),
        ({"name": "OUTPUT0", "datatype": "FP32", "shape": [3, 16]}, True),
        ({"name": "OUTPUT0", "datatype": "BYTES", "shape": [1, 2], "data": ["1.5:3", "1.0:2"]}, True),
        ({"name": "OUTPUT0", "datatype": "BYTES", "shape": [1, 1], "data": [1.5]}, False),
        ({"name": "OUTPUT0", "datatype": "INT32", "shape": [3, 16], "data": [1] * 48}, False),
        ({"name": "INPUT0", "datatype": "FP32", "shape": [3, 16], "data": [0.5] * 48}, False),
    ],
)
def test_the_schema_of_a_response(output: dict[str, Any], is_right: bool) -> None:
    """An output is a tensor, a tensor elsewhere (binary, shared memory), or classes."""
    made = document(ADD_SUB)
    response = {"model_name": "add_sub", "model_version": "1", "outputs": [output]}
    assert (errors(made, response_content(made, INFER)["schema"], response) == []) is is_right


def test_names_are_escaped() -> None:
    """A name is one part of a path, no template, and no Markdown of its own."""
    made = document(IMAGES)
    assert "/v2/models/a%2Fb%20%7Bc%7D%20%C3%A9%7C%60/infer" in made["paths"]
    hostile = model("m", [tensor("a`|\n|b", "FP32", 1)], [])
    (tag,) = [tag for tag in document(hostile)["tags"] if tag["name"] == "Model: m"]
    assert "| input | `a   |b` |" not in tag["description"]
    assert "| input | `a    b` | FP32 | [1] |" in tag["description"]


def test_a_model_without_inputs() -> None:
    made = document(CLOCK)
    schema = request_content(made, "/v2/models/clock/infer")["schema"]
    Draft202012Validator.check_schema(schema)
    assert errors(made, schema, {"inputs": []}) == []


def test_a_tag_shows_the_tensors() -> None:
    tags = {tag["name"]: tag["description"] for tag in document(ADD_SUB, TOKENS)["tags"]}
    assert tags["Model: add_sub"].splitlines() == [
        "`python`, versions 1, 2, batches of up to 8",
        "",
        "| | name | datatype | shape |",
        "|---|---|---|---|",
        "| input | `INPUT0` | FP32 | [any, 16] |",
        "| input | `INPUT1` | FP32 | [any, 16] |",
        "| output | `OUTPUT0` | FP32 | [any, 16] |",
        "| output | `OUTPUT1` | FP32 | [any, 16] |",
    ]
    assert tags["Model: tokens"].startswith("`python`, versions 1, 2, no batching, decoupled")
