"""Texts of a configuration that become paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InvalidArgument
from repository.layout import ModelDirectory
from repository.loader import read_config
from repository.model_config import ModelConfig, ModelOutput
from repository.validation_paths import validate_paths

OUTPUT = {"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}
ACCELERATORS = {"gpu_execution_accelerator": [{"name": "tensorrt", "parameters": {"trt_engine_cache_path": "a\0"}}]}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"backend": "py\0thon"}, "'backend'"),
        ({"default_model_filename": "a\0b"}, "'default_model_filename'"),
        ({"cc_model_filenames": {"7.5": "\0"}}, "'cc_model_filenames' for '7.5'"),
        ({"model_operations": {"op_library_filename": ["a", "b\0"]}}, "'op_library_filename'"),
        ({"output": [OUTPUT | {"label_filename": "labels\0.txt"}]}, "'label_filename' of output 'OUT'"),
        (
            {"sequence_batching": {"state": [{"input_name": "S", "initial_state": [{"data_file": "\0"}]}]}},
            "'data_file' of state 'S'",
        ),
        (
            {"model_warmup": [{"name": "w", "inputs": {"IN": {"input_data_file": "\0"}}}]},
            "'input_data_file' of warmup 'w' for input 'IN'",
        ),
        ({"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/env\0"}}}, "parameter 'EXECUTION_ENV_PATH'"),
        (
            {"optimization": {"execution_accelerators": ACCELERATORS}},
            "parameter 'trt_engine_cache_path' of execution accelerator 'tensorrt'",
        ),
        (
            {"model_repository_agents": {"agents": [{"name": "checksum", "parameters": {"MD5:\0": ""}}]}},
            "a parameter of repository agent 'checksum'",
        ),
    ],
)
def test_no_path_of_a_configuration_has_a_nul(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    directory = ModelDirectory("m", tmp_path, tmp_path)
    override = json.dumps({"backend": "python"} | fields)
    with pytest.raises(InvalidArgument) as caught:
        read_config(directory, override=override)
    assert caught.value.message == f"{named} of model 'm' has a NUL character, which no path can hold"
    assert read_config(directory, override=override.replace("\\u0000", ""))


def test_other_texts_may_have_one() -> None:
    validate_paths(ModelConfig(name="m", output=(ModelOutput(name="a\0b"),)))
