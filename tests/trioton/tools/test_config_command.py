"""`trioton config`, by its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repository.json_form import to_json_form
from repository.pbtxt import parse_pbtxt
from tests.e2e.repository import add_add_sub
from trioton.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    add_add_sub(tmp_path / "sums", versions=(1, 2))
    (tmp_path / "sums" / "config.pbtxt").write_text("max_batch_size: 8\n")
    return tmp_path / "sums"


def test_both_forms_are_of_the_completed_configuration(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(model)]) == 0
    config = parse_pbtxt(capsys.readouterr().out, source="stdout")
    assert (config.name, config.backend, config.max_batch_size) == ("sums", "onnxruntime", 8)
    assert [(entry.name, entry.dims) for entry in config.input] == [("INPUT0", (16,)), ("INPUT1", (16,))]
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.preferred_batch_size == (8,)
    assert config.instance_group[0].name == "sums"
    assert main(["config", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == to_json_form(config)


def test_a_model_file_alone_is_enough(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for `trioton run`: nothing but a file, and no warnings between the lines."""
    (model / "config.pbtxt").unlink()
    assert main(["config", str(model / "2" / "model.onnx")]) == 0
    shown = capsys.readouterr()
    assert parse_pbtxt(shown.out, source="stdout").max_batch_size == 4
    assert shown.err == ""


def test_an_ensemble_finds_its_models_beside_it(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also that it is not decoupled is completed, as its models are not."""
    tensor = '{{ name: "{}" data_type: TYPE_FP32 dims: [ 16 ] }}'
    maps = 'input_map [ { key: "INPUT0" value: "A" }, { key: "INPUT1" value: "A" } ]'
    (model.parent / "twice" / "1").mkdir(parents=True)
    (model.parent / "twice" / "config.pbtxt").write_text(
        f'platform: "ensemble" max_batch_size: 8 input {tensor.format("A")} output {tensor.format("B")} '
        f'ensemble_scheduling {{ step {{ model_name: "sums" model_version: -1 {maps} '
        'output_map { key: "OUTPUT0" value: "B" } } }'
    )
    assert main(["config", str(model.parent / "twice")]) == 0
    config = parse_pbtxt(capsys.readouterr().out, source="stdout")
    assert config.model_transaction_policy is not None
    assert not config.is_decoupled


def test_a_model_that_a_server_would_not_load(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "config.pbtxt").write_text("max_batch_size: -8\n")
    assert main(["config", str(model)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == ("a server would not load model 'sums': 'max_batch_size' must be non-negative value for sums\n")


def test_by_the_name_that_a_server_may_have_for_it(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "configs").mkdir()
    (model / "configs" / "big.pbtxt").write_text("max_batch_size: 64")
    assert main(["config", str(model), "--model-config-name=big"]) == 0
    assert "max_batch_size: 64" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "trioton config takes one model directory, got 0: none"),
        (["a", "b"], "trioton config takes one model directory, got 2: a b"),
        (["/no/such/place"], "'/no/such/place' is no directory"),
        (["a", "--http-port=1"], 'Bad option: "--http-port".'),
    ],
)
def test_usage_errors(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *words]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("usage: trioton config <model directory>")
    assert text in shown.err
