"""Options of a model with an engine, and the completion of its configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.engines.settings import EngineSettings
from backends.engines.tensors.completion import complete_engine_config
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.pbtxt import parse_pbtxt
from tests.backends.helpers import source_of


def parameters(**values: object) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )


def settings(tmp_path: Path, files: dict[str, Any] | None = None, /, **values: object) -> EngineSettings:
    (tmp_path / "1").mkdir(exist_ok=True)
    for name, content in (files or {}).items():
        (tmp_path / "1" / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return EngineSettings.of(source_of(parameters(**values), tmp_path))


def test_without_any(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert found.directory == tmp_path / "1"
    assert found.options == {}
    assert found.context_length == 0
    assert found.limits.queued_requests == 4096
    assert found.step_timeout == 600


def test_the_engine_gets_what_is_not_the_servers(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        num_kv_blocks=5,
        max_model_len=100,
        max_queue_requests=3,
        step_timeout_seconds=1.5,
        tool_call_parser="hermes",
        INFERENCE_PRECISION_HINT="f32",
        openai_text_input="a",
        **{"ENV:X": "1"},
    )
    assert found.options == {"num_kv_blocks": "5", "INFERENCE_PRECISION_HINT": "f32"}
    assert found.context_length == 100
    assert found.step_timeout == 1.5
    assert found.limits.queued_requests == 3


def test_the_files_of_tritons_vllm_backend(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    files = {
        "model.json": {"model": "../weights", "max_model_len": 64, "max_num_seqs": 8, "enable_lora": True},
        "multi_lora.json": {"a": "adapters/a", "b": "/elsewhere/b"},
    }
    found = settings(tmp_path, files, max_num_seqs=9)
    assert found.directory == tmp_path / "weights"
    assert found.options == {"max_num_seqs": "9", "enable_lora": True}, "the configuration wins"
    assert found.context_length == 64
    assert found.adapters == {"a": str(tmp_path / "1" / "adapters/a"), "b": "/elsewhere/b"}


def test_adapters_are_for_engines_that_are_to_have_them(tmp_path: Path) -> None:
    assert settings(tmp_path, {"model.json": {"seed": 1}, "multi_lora.json": {"a": "a"}}).adapters == {}


@pytest.mark.parametrize(
    ("files", "values", "text"),
    [
        ({"model.json": "{"}, {}, "is no JSON"),
        ({"model.json": [1]}, {}, "must have a JSON object"),
        ({"multi_lora.json": {"a": 1}}, {}, "'a' must be a path, got int"),
        ({}, {"model": "nowhere"}, "'model' names 'nowhere', which is no folder"),
        ({}, {"max_model_len": "x"}, "max_model_len: failed to convert 'x'"),
        ({}, {"max_queue_requests": "-1"}, "max_queue_requests must be at least 0, got -1"),
        ({}, {"step_timeout_seconds": "x"}, "step_timeout_seconds must be a number of seconds, 0 or more, got 'x'"),
        ({}, {"step_timeout_seconds": "-1"}, "0 or more, got '-1'"),
        ({}, {"step_timeout_seconds": "nan"}, "0 or more, got 'nan'"),
        ({"model.json": {"step_timeout_seconds": [1]}}, {}, "0 or more, got [1]"),
    ],
)
def test_what_is_refused(tmp_path: Path, files: dict[str, Any], values: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"model 'm'") as caught:
        settings(tmp_path, files, **values)
    assert text in caught.value.message


def test_a_completed_configuration_has_the_tensors_of_tritons_backend() -> None:
    config = complete_engine_config(parse_pbtxt('backend: "scripted"', source="config.pbtxt"))
    assert config.is_decoupled
    assert config.max_batch_size == 0
    assert [each.name for each in config.input if not each.optional] == ["text_input"]
    assert {each.name: (each.data_type, each.dims) for each in config.output} == {
        "text_output": (DataType.BYTES, (-1,)),
        "finish_reason": (DataType.BYTES, (-1,)),
        "cumulative_logprob": (DataType.FP32, (-1,)),
        "logprobs": (DataType.BYTES, (-1,)),
        "num_input_tokens": (DataType.UINT32, (1,)),
        "num_output_tokens": (DataType.UINT32, (-1,)),
    }
    assert complete_engine_config(config) == config


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_batch_size: 4", "max_batch_size must be 0, got 4"),
        ("model_transaction_policy { decoupled: false }", "must be configured to use decoupled"),
        ("sequence_batching {}", "sequence_batching must not be set"),
        ('input { name: "x" data_type: TYPE_STRING dims: 1 }', "an engine has no input 'x'"),
        (
            'input { name: "stream" data_type: TYPE_INT32 dims: 1 }',
            "input 'stream' must have data_type BOOL, got INT32",
        ),
        ('output { name: "x" data_type: TYPE_STRING dims: 1 }', "an engine has no output 'x'"),
    ],
)
def test_configurations_that_an_engine_cannot_have(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        complete_engine_config(parse_pbtxt(f'name: "m" backend: "scripted" {text}', source="config.pbtxt"))
