"""How a model embeds token ids, by its configuration and its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.text.model import TensorNames, VectorTensors
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig, ModelInput, ModelOutput, ModelParameter
from repository.text_models import TextDefaults, read_text_model, text_tensors
from repository.vector_tensors import vector_tensors
from tests.protocol.http.openai.words import word_tokenizer_json

STRING, FLOAT, HALF, LONG, INT = DataType.BYTES, DataType.FP32, DataType.FP16, DataType.INT64, DataType.INT32
BERT = {"input_ids": LONG, "attention_mask": LONG, "token_type_ids": LONG}
TWO = {"input_ids": LONG, "attention_mask": LONG}
NAMED: dict[str, Any] = {"openai_embedding_output": "v", "openai_embedding_input": "ids"}


def config(
    inputs: dict[str, DataType],
    outputs: dict[str, tuple[int, ...]] | None = None,
    *,
    dims: tuple[int, ...] = (-1,),
    rows: int = 8,
    kind: DataType = FLOAT,
    **keys: str,
) -> ModelConfig:
    return ModelConfig(
        name="m",
        max_batch_size=rows,
        input=tuple(ModelInput(name=name, data_type=each, dims=dims) for name, each in inputs.items()),
        output=tuple(
            ModelOutput(name=name, data_type=kind, dims=each)
            for name, each in (outputs or {"last_hidden_state": (-1, 16)}).items()
        ),
        parameters={key: ModelParameter(string_value=value) for key, value in keys.items()},
    )


@pytest.mark.parametrize(
    ("given", "vectors"),
    [
        (
            config(BERT),
            VectorTensors("input_ids", "last_hidden_state", "attention_mask", "token_type_ids", 8, 0, "mean", size=16),
        ),
        (
            config(TWO, {"sentence_embedding": (5,), "token_embeddings": (-1, 5)}, kind=HALF),
            VectorTensors("input_ids", "sentence_embedding", "attention_mask", rows=8, size=5),
        ),
        (
            config(TWO, {"pooler_output": (5,), "last_hidden_state": (-1, 64, -1)}, rows=0, dims=(-1, 64)),
            VectorTensors("input_ids", "last_hidden_state", "attention_mask", rows=32, length=64, pooling="mean"),
        ),
        (
            config({"ids": INT}, {"v": (3,)}, rows=0, **NAMED),
            VectorTensors("ids", "v", rows=0, size=3),
        ),
        (
            config(BERT, {"pooler_output": (3,)}, openai_embedding_output="pooler_output"),
            VectorTensors("input_ids", "pooler_output", "attention_mask", "token_type_ids", 8, size=3),
        ),
        # Models for something else.
        (config(BERT, {"logits": (2,)}), None),
        (config(BERT, {"pooler_output": (2,)}), None),
        (config({**TWO, "position_ids": LONG}), None),
        (config({**TWO, "past_key_values.0.key": FLOAT}), None),
        (config({"input_ids": LONG}), None),
        (config({"input_ids": STRING, "attention_mask": LONG}), None),
        (config(BERT, {"last_hidden_state": (-1, 16, 3)}), None),
        (config(BERT, {"last_hidden_state": (-1, 3)}, openai_score_output="last_hidden_state"), None),
    ],
)
def test_tensors(given: ModelConfig, vectors: VectorTensors | None) -> None:
    assert vector_tensors(given) == vectors
    if vectors is not None:
        assert text_tensors(given) == TensorNames(text_input="", text_output="")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config({"ids": LONG}, **NAMED), r"\['openai_embedding_output'\]: expected the name of an output of TYPE_FP32"),
        (config({"ids": LONG}, {"v": (3,)}, kind=LONG, **NAMED), "expected the name of an output of TYPE_FP32"),
        (config({"ids": LONG}, {"v": (2, 2, 3)}, **NAMED), r"output 'v': expected one dimension more than input 'ids'"),
        (config({"ids": LONG, "x": LONG}, {"v": (3,)}, **NAMED), "expected inputs of tokens alone, there is 'x', too"),
        (config({"ids": LONG}, {"v": (3,)}, dims=(2, 3), **NAMED), "expected one dimension, of tokens"),
        (
            config({"ids": LONG}, {"v": (3,)}, **NAMED, openai_embedding_mask="m"),
            r"\['openai_embedding_mask'\]: expected the name of an input of TYPE_INT64, TYPE_INT32, got 'm'",
        ),
        (
            config({"a": LONG}, openai_embedding_pooling="cls"),
            r"\['openai_embedding_pooling'\]: expected 'openai_",
        ),
        (config({"ids": FLOAT}, {"v": (3,)}, **NAMED), r"\['openai_embedding_input'\]: expected the name of an input"),
    ],
)
def test_what_does_not_fit(given: ModelConfig, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        text_tensors(given)


def read(folder: Path, given: ModelConfig, **defaults: Any) -> Any:
    (folder / "1").mkdir(exist_ok=True)
    return read_text_model(ModelDirectory("m", folder, folder), given, 1, TextDefaults(**defaults))


def write(folder: Path, **files: Any) -> None:
    (folder / "1").mkdir(exist_ok=True)
    (folder / "1" / "tokenizer.json").write_text(word_tokenizer_json())
    for name, members in files.items():
        (folder / "1" / f"{name}.json").write_text(json.dumps(members))


def test_an_export_with_its_tokenizer(tmp_path: Path) -> None:
    write(tmp_path, config={"max_position_embeddings": 512}, sentence_bert_config={"max_seq_length": 128})
    made = read(tmp_path, config(BERT))
    assert (made.vectors.pooling, made.vectors.normalizes, made.vectors.dimensions) == ("mean", True, ())
    assert made.context_length == 128
    assert read(tmp_path, config(BERT, max_model_len="300")).context_length == 300


def test_an_export_without_a_tokenizer_has_no_text(tmp_path: Path) -> None:
    """It may be anything, and the default tokenizer is a language model's."""
    (tmp_path / "other" / "1").mkdir(parents=True)
    write(tmp_path / "other")
    assert read(tmp_path, config(BERT)) is None
    assert read(tmp_path, config(BERT), tokenizer=tmp_path / "other" / "1") is None
    asked = config(BERT, openai_embedding_output="last_hidden_state")
    assert read(tmp_path, asked, tokenizer=tmp_path / "other" / "1").vectors is not None
    with pytest.raises(InvalidArgument, match="its input 'input_ids' takes token ids: expected a tokenizer"):
        read(tmp_path, asked)


DENSE = [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]


def test_files_that_nobody_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They do not fail a model that was served before."""
    write(tmp_path, modules=DENSE)
    assert read(tmp_path, config(BERT)) is None
    assert "model 'm': 'modules.json': the module 'Dense' is not applied" in caplog.text
    with pytest.raises(InvalidArgument, match=r"^model 'm': 'modules\.json': the module 'Dense'"):
        read(tmp_path, config(BERT, openai_embedding_output="last_hidden_state"))
    assert read(tmp_path, config(BERT, openai_embedding_pooling="cls")).vectors.pooling == "cls"
    assert read(tmp_path, config(BERT, {"sentence_embedding": (4,)})).vectors.pooling == ""


def test_parameters_go_before_files(tmp_path: Path) -> None:
    write(tmp_path, config={"matryoshka_dimensions": [4, 8]}, modules=[])
    vectors = read(tmp_path, config(BERT)).vectors
    assert vectors.dimensions == (4, 8)
    given: dict[str, Any] = {"openai_embedding_pooling": "last", "openai_embedding_normalize": "false"}
    vectors = read(tmp_path, config(BERT, **given, openai_embedding_dimensions="2,6")).vectors
    assert (vectors.pooling, vectors.normalizes, vectors.dimensions) == ("last", False, (2, 6))
    assert read(tmp_path, config(BERT, openai_embedding_dimensions="any")).vectors.dimensions is None
    write(tmp_path, config={"is_matryoshka": True})
    assert read(tmp_path, config(BERT)).vectors.dimensions is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("pooling", "sum"), ("normalize", "yes"), ("dimensions", "0"), ("dimensions", "2,"), ("dimensions", "9" * 5000)],
)
def test_parameters_that_are_wrong(tmp_path: Path, key: str, value: str) -> None:
    write(tmp_path)
    given: dict[str, Any] = {f"openai_embedding_{key}": value}
    with pytest.raises(InvalidArgument, match=rf"^model 'm': parameters\['openai_embedding_{key}'\]: expected "):
        read(tmp_path, config(BERT, **given))


def test_pooling_of_what_is_pooled(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(InvalidArgument, match="expected none for 'sentence_embedding'"):
        read(tmp_path, config(BERT, {"sentence_embedding": (4,)}, openai_embedding_pooling="cls"))
