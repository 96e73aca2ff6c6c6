"""The component schemas, against the values and the structures that they describe."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # ships no types

from protocol.core import (
    InferBatchStatistics,
    InferResponseStatistics,
    MemoryUsage,
    ModelMetadata,
    ModelStatistics,
    StatisticDuration,
    TensorMetadata,
)
from protocol.http.codec.infer import OutputEncoding, decode_infer_request, encode_infer_response
from protocol.http.handlers.settings import LogBody, TraceBody
from protocol.http.handlers.shared_memory import CudaRegionBody, SystemRegionBody
from protocol.http.openapi.schemas import component_schemas
from protocol.messages import InferenceResponse, Tensor
from protocol.server_settings import LogSettings, TraceSettings
from protocol.shared_memory.regions import CudaRegion, SystemRegion
from tests.protocol.http.openapi.samples import ADD_SUB, document, errors

SCHEMAS = component_schemas()
WHOLE = document(ADD_SUB)


def errors_of(name: str, value: Any) -> list[str]:
    return errors(WHOLE, {"$ref": f"#/components/schemas/{name}"}, value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_is_a_schema_for_readers(name: str) -> None:
    """Named as it is referred to, and without what only code cares for: defaults, nulls, its own names."""
    Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name].get("title", name) == name
    text = json.dumps(SCHEMAS[name])
    assert '"default":' not in text
    assert "Body" not in text.replace("OutputBody", "")


DURATION = StatisticDuration(3, 1000)
STATISTICS = ModelStatistics(
    "m",
    "1",
    response_stats={"0": InferResponseStatistics(success=DURATION)},
    batch_stats=(InferBatchStatistics(4, *[DURATION] * 3),),
    memory_usage=(MemoryUsage("CPU", 0, 1),),
)
TENSOR = TensorMetadata("A", "FP32", (-1, 2))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ModelMetadata", ModelMetadata("m", ("1",), "python", (TENSOR,), ())),
        ("ModelStatistics", STATISTICS),
        ("LogSettings", LogSettings()),
        ("TraceSettings", TraceSettings().texts()),
        ("SystemRegions", [SystemRegion("r", "/k", 0, 64)]),
        ("CudaRegions", [CudaRegion("r", 0, 64)]),
    ],
)
def test_what_the_server_answers_fits(name: str, value: Any) -> None:
    assert errors_of(name, msgspec.json.decode(msgspec.json.encode(value))) == []


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_response_fits(is_binary: bool) -> None:
    """As the codec writes it, with and without what may be left out."""
    outputs = [Tensor.from_numpy(f"OUTPUT{i}", np.ones((2, 16), np.float32)) for i in (0, 1)]
    for response in (
        InferenceResponse("add_sub", 1, outputs),
        InferenceResponse("add_sub", 1, outputs[:1], id="7", parameters={"x": 1.5, "y": True}),
    ):
        _, parts = encode_infer_response(response, OutputEncoding(is_binary))
        value = json.loads(bytes(parts[0]))
        assert errors_of("InferResponse", value) == []
        own = WHOLE["paths"]["/v2/models/add_sub/infer"]["post"]["responses"]["200"]["content"]["application/json"]
        assert errors(WHOLE, own["schema"], value) == []


def test_a_request_that_fits_can_be_read() -> None:
    value = {
        "id": "7",
        "parameters": {"sequence_id": "a", "sequence_start": True, "priority": 1, "mine": 0.5},
        "inputs": [{"name": "A", "datatype": "INT32", "shape": [2, 1], "data": [[1], [2]]}],
        "outputs": [{"name": "B", "parameters": {"binary_data": True}}],
    }
    assert errors_of("InferRequest", value) == []
    assert errors_of("RequestParameters", value["parameters"]) == []
    decode_infer_request(json.dumps(value).encode(), None, model_name="m", model_version=-1, max_input_size=1000)


@pytest.mark.parametrize(
    ("name", "structure"),
    [
        ("LogSettingsUpdate", LogBody),
        ("TraceSettingsUpdate", TraceBody),
        ("SystemRegistration", SystemRegionBody),
        ("CudaRegistration", CudaRegionBody),
    ],
)
def test_written_schemas_have_the_members_that_are_read(name: str, structure: type[msgspec.Struct]) -> None:
    """But for those that are only there to be refused."""
    refused = {"log_file", "trace_file"}
    assert set(SCHEMAS[name]["properties"]) == set(structure.__struct_fields__) - refused
