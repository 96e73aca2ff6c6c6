"""How a cross-encoder takes pairs of texts, by its configuration and its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.text.model import PairTensors, TensorNames
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig, ModelInput, ModelOutput, ModelParameter
from repository.pair_tensors import pair_tensors, read_activation
from repository.text_models import read_text_model, text_tensors

STRING, FLOAT, LONG, INT = DataType.BYTES, DataType.FP32, DataType.INT64, DataType.INT32
BERT = {"input_ids": LONG, "attention_mask": LONG, "token_type_ids": LONG}


def config(
    inputs: dict[str, DataType], *, dims: tuple[int, ...] = (-1,), rows: int = 8, output: DataType = FLOAT, **keys: str
) -> ModelConfig:
    keys = {"openai_score_output": "logits", **keys}
    return ModelConfig(
        name="m",
        max_batch_size=rows,
        input=tuple(ModelInput(name=name, data_type=kind, dims=dims) for name, kind in inputs.items()),
        output=(ModelOutput(name="logits", data_type=output, dims=(1,)),),
        parameters={key: ModelParameter(string_value=value) for key, value in keys.items() if value},
    )


@pytest.mark.parametrize(
    ("given", "pairs"),
    [
        (config(BERT), PairTensors("input_ids", "logits", "attention_mask", "token_type_ids", 8)),
        (config({"input_ids": INT}, output=DataType.FP16), PairTensors("input_ids", "logits", rows=8)),
        (
            config(BERT, rows=0, dims=(-1, 128)),
            PairTensors("input_ids", "logits", "attention_mask", "token_type_ids", 32, 128),
        ),
        (config({"input_ids": LONG}, rows=0), PairTensors("input_ids", "logits", rows=0)),
        (config({"input_ids": LONG}, rows=0, dims=(1, -1)), PairTensors("input_ids", "logits", rows=1)),
        (
            config({"ids": LONG, "mask": LONG}, openai_score_input="ids", openai_score_mask="mask"),
            PairTensors("ids", "logits", mask="mask", rows=8),
        ),
        (
            config({"pair": STRING}, dims=(2,), openai_score_input="pair"),
            PairTensors("pair", "logits", takes_texts=True, rows=8),
        ),
        (config(BERT, openai_score_output=""), None),
    ],
)
def test_tensors(given: ModelConfig, pairs: PairTensors | None) -> None:
    assert pair_tensors(given) == pairs
    assert text_tensors(given) == (None if pairs is None else TensorNames(text_input="", text_output=""))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            config(BERT, openai_score_output="scores"),
            r"model 'm', parameters\['openai_score_output'\]: expected the name of an output of TYPE_FP32 or "
            "TYPE_FP16, got 'scores'",
        ),
        (config(BERT, output=LONG), r"parameters\['openai_score_output'\]"),
        (config({"ids": LONG}), "expected an input of token ids or texts, there is no 'input_ids'"),
        (config({"input_ids": FLOAT}), "got 'input_ids': it is of TYPE_FP32"),
        (config(BERT, openai_score_mask="mask"), "got 'mask': there is none of that name"),
        (
            config(BERT, openai_score_output="", openai_score_types="x"),
            r"\['openai_score_types'\]: expected 'openai_score",
        ),
        (config(BERT, dims=(2, -1)), r"expected one dimension, of tokens, got dims \[2, -1\]"),
        (config(BERT, rows=0, dims=(4, -1)), "takes 4 pairs at once, no fewer"),
        (config({"p": STRING}, dims=(3,), openai_score_input="p"), r"expected 2 texts, got dims \[3\]"),
    ],
)
def test_what_does_not_fit(given: ModelConfig, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        pair_tensors(given)


@pytest.mark.parametrize(
    ("members", "activation"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"sentence_transformers": 3}, "sigmoid"),
    ],
)
def test_the_activation_of_its_files(tmp_path: Path, members: dict[str, Any], activation: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(members))
    assert read_activation(config(BERT), tmp_path) == activation
    assert read_activation(config(BERT, openai_score_activation="identity"), tmp_path) == "identity"


def test_activations_that_there_are_not(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    given = config({"p": STRING}, dims=(2,), openai_score_input="p", openai_score_activation="tanh")
    with pytest.raises(InvalidArgument, match=r"^model 'm': parameters\['openai_score_activation'\]: expected one of "):
        read_text_model(ModelDirectory("m", tmp_path, tmp_path), given, 1)


def test_token_ids_need_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(
        InvalidArgument, match=r"^model 'm': its input 'input_ids' takes token ids: expected a tokenizer"
    ):
        read_text_model(ModelDirectory("m", tmp_path, tmp_path), config(BERT), 1)


def test_texts_need_none(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    made = read_text_model(
        ModelDirectory("m", tmp_path, tmp_path), config({"p": STRING}, dims=(2,), openai_score_input="p"), 1
    )
    assert made is not None
    assert made.pairs == PairTensors("p", "logits", takes_texts=True, rows=8)
