"""The words of `trioton batch`. No model is run here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protocol.jobs.source import DataFormat
from repository.stores.urls import StoreUrl
from trioton.batch.command import batch_job
from trioton.cli import main
from trioton.flags.fields import UsageError

CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "double" / "1").mkdir(parents=True)
    (tmp_path / "double" / "1" / "model.py").write_text("")
    (tmp_path / "double" / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "double"


def test_a_model_of_a_repository(model: Path) -> None:
    words = ["in.jsonl", "out.jsonl", "--model=double", f"--model-repository={model.parent}", "--version=3"]
    job = batch_job(words, {"TRIOTON_SHARD": "2/4", "TRIOTON_LIMIT": "9", "TRIOTON_HTTP_PORT": "no port"})
    assert (job.model, job.identity.version, job.identity.shard, job.identity.limit) == ("double", 3, "2/4", 9)
    assert job.settings.load_model == ("double",)
    assert not job.settings.services()
    assert (job.input_format, job.output.is_file, job.config) == (DataFormat.JSON_LINES, True, None)
    assert job.output.place == Path("out-00002-of-00004.jsonl").absolute()


def test_a_model_by_its_directory(model: Path) -> None:
    job = batch_job(["s3://bucket/in/*.parquet", "s3://bucket/out", "--model", str(model)], {})
    assert (job.model, job.input_format) == ("double", DataFormat.PARQUET)
    assert isinstance(job.input, StoreUrl)
    assert job.settings.model is not None


def test_formats_are_told_by_endings_or_flags(model: Path) -> None:
    words = ["folder", "out", f"--model={model}"]
    job = batch_job([*words, "--format=images", "--output-format=npz"], {})
    assert (job.input_format, job.output.data_format, job.output.is_file) == (DataFormat.IMAGES, DataFormat.NPZ, False)
    assert batch_job([*words, "--format=jsonl"], {}).output.data_format is DataFormat.JSON_LINES
    assert batch_job(["in.npz", "out.parquet", f"--model={model}"], {}).output.data_format is DataFormat.PARQUET


def test_outputs_beside_inputs_are_none_of_them(model: Path) -> None:
    for words in (["in-*.jsonl", "out.jsonl"], ["in/*.npz", "in/out.jsonl"], ["in.npz", "."], ["in/a.jsonl", "in"]):
        batch_job([*words, f"--model={model}"], {})


def test_batches_of_another_size(model: Path) -> None:
    job = batch_job(["in.jsonl", "out.jsonl", f"--model={model}", "--batch=64"], {})
    assert job.config is not None
    assert '"max_batch_size": 64' in job.config
    assert '"dynamic_batching": {' in job.config


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "takes INPUT and OUTPUT, got 0"),
        (["in.jsonl", "out.jsonl", "more"], "takes INPUT and OUTPUT, got 3"),
        (["in.jsonl", "out.jsonl"], "--model is required"),
        (["in.jsonl", "out.jsonl", "--model=no-such-folder"], "is no directory; for a model of a repository"),
        (["in.xyz", "out.jsonl", "--model=MODEL"], "does not tell its format; give it with --format"),
        (["in.jsonl", "out.png", "--model=MODEL"], "is of no format that results have"),
        (["in.jsonl", "out.jsonl", "--model=MODEL", "--shard=4/3"], "--shard: expected <i>/<n>"),
        (["in.jsonl", "out.jsonl", "--model=MODEL", "--shard=0/3"], "--shard: expected <i>/<n>"),
        (["in.jsonl", "out.jsonl", "--model=MODEL", "--format=csv"], "--format: expected jsonl or parquet"),
        (["in.jsonl", "xyz://b/out.jsonl", "--model=MODEL"], "url 'xyz://b/out.jsonl'"),
        (["in.jsonl", "out.jsonl", "--model=m", "--model-repository=FOLDER", "--batch=3"], "--batch needs a config"),
        (["in.jsonl", "out.jsonl", "--model=MODEL", "--http-port=1"], "Bad option"),
        (["in.jsonl", "./in.jsonl", "--model=MODEL"], "which is written: choose another OUTPUT"),
        (["in", "in/out.jsonl", "--format=jsonl", "--model=MODEL"], "which is written"),
        (["in", "in/more/out", "--format=jsonl", "--model=MODEL"], "which is written"),
        (["*.jsonl", "out.jsonl", "--model=MODEL"], "which is written"),
        (["s3://b/in/**", "s3://b/in/out", "--format=npz", "--model=MODEL"], "which is written"),
        (["in.jsonl", "out.jsonl", "--model=MODEL", "--served-model-name=x"], "is for the folder of a language model"),
    ],
)
def test_what_cannot_be_meant(words: list[str], text: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [word.replace("MODEL", str(model)).replace("FOLDER", str(model.parent)) for word in words]
    with pytest.raises(UsageError, match=re.escape(text)):
        batch_job(given, {})
    assert main(["batch", *given]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("usage: trioton batch <input> <output> --model=<name>")
    assert text in shown


def test_models_without_batches_have_none(model: Path) -> None:
    (model / "config.pbtxt").write_text(CONFIG.replace("max_batch_size: 8", "max_batch_size: 0"))
    with pytest.raises(UsageError, match="runs no batches that could be joined from rows"):
        batch_job(["in.jsonl", "out.jsonl", f"--model={model}", "--batch=64"], {})
