"""Configurations as a person would write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from repository.instance_groups import NO_GPUS
from repository.layout import ModelDirectory
from repository.loader import read_config
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt
from repository.readable_pbtxt import WIDTH, format_readable, without_defaults
from repository.validation import normalise
from tests.repository.strategies import model_configs


@pytest.mark.slow
@given(config=model_configs())
def test_it_reads_back_to_an_equal_value(config: ModelConfig) -> None:
    assert parse_pbtxt(format_readable(config), source="text") == config


def test_what_it_looks_like() -> None:
    config = parse_pbtxt(
        """
        backend: "python" max_batch_size: 8
        input { name: "A" data_type: TYPE_FP32 dims: 3 dims: -1 }
        input { name: "B \\"\\n" data_type: TYPE_STRING dims: 1 }
        dynamic_batching {}
        instance_group { kind: KIND_CPU count: 2 }
        parameters { key: "k" value { string_value: "v" } }
        metric_tags { key: "a" value: "b" }
        """,
        source="text",
    )
    assert format_readable(config) == (
        'backend: "python"\n'
        "max_batch_size: 8\n"
        "input [\n"
        '  { name: "A" data_type: TYPE_FP32 dims: [ 3, -1 ] },\n'
        '  { name: "B \\"\\n" data_type: TYPE_STRING dims: [ 1 ] }\n'
        "]\n"
        "dynamic_batching {}\n"
        "instance_group [\n"
        "  { kind: KIND_CPU count: 2 }\n"
        "]\n"
        'metric_tags { key: "a" value: "b" }\n'
        'parameters { key: "k" value { string_value: "v" } }\n'
    )


def test_long_messages_have_lines_of_their_own() -> None:
    words = " ".join(["word"] * 30)
    config = parse_pbtxt(f'parameters {{ key: "k" value {{ string_value: "{words}" }} }}', source="text")
    lines = format_readable(config).splitlines()
    assert lines == ["parameters {", '  key: "k"', "  value {", f'    string_value: "{words}"', "  }", "}"]
    assert max(map(len, lines[:3])) < WIDTH


def test_what_a_server_fills_in_goes_without_saying(tmp_path: Path) -> None:
    """And is filled in again when the short form is read."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").touch()
    directory = ModelDirectory("m", tmp_path / "m", tmp_path)
    directory.config_file.write_text("max_batch_size: 4 dynamic_batching {}")

    def completed() -> ModelConfig:
        return normalise(read_config(directory), gpus=NO_GPUS, backend_default_cpu_count=2, backend_prefers_gpu=False)

    config = completed()
    short = without_defaults(config, directory)
    assert format_readable(short) == 'backend: "onnxruntime"\nmax_batch_size: 4\ndynamic_batching {}\n'
    directory.config_file.write_text(format_readable(short))
    assert completed() == config


def test_what_was_chosen_stays(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    directory = ModelDirectory("m", tmp_path / "m", tmp_path)
    config = parse_pbtxt(
        'name: "m" backend: "mine" default_model_filename: "m.json" version_policy { all {} } max_batch_size: 4 '
        "dynamic_batching { preferred_batch_size: 2 } instance_group { count: 3 kind: KIND_CPU name: 'n' }",
        source="text",
    )
    assert without_defaults(config, directory) == parse_pbtxt(
        format_readable(config).replace('name: "m"\n', ""), source="text"
    )
