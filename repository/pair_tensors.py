"""Pair tensors: how a cross-encoder takes pairs of texts, from its final configuration and its files.

Flow: configuration and tokenizer's folder -> [pair tensors] -> `protocol.text.model.PairTensors`. A model is one if its
parameter `openai_score_output` names the output with the scores. Blocks, for it reads `config.json`.
"""

from __future__ import annotations

from pathlib import Path

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.text.model import PairTensors
from repository.model_config import ModelConfig
from repository.text_files import read_config
from repository.token_tensors import InputKeys, token_inputs, wrong

OUTPUT_KEY, ACTIVATION_KEY = "openai_score_output", "openai_score_activation"
_INPUTS = InputKeys("openai_score_input", "openai_score_mask", "openai_score_types", "pairs", texts=2)
_SCORES = (DataType.FP32, DataType.FP16)
ACTIVATIONS = ("sigmoid", "identity")


def pair_tensors(config: ModelConfig) -> PairTensors | None:
    """None for a model that is no cross-encoder. The activation is yet to be read.

    Raises:
        InvalidArgument: a parameter names a tensor that the model has not, or of another datatype or shape.
    """
    output = config.parameter(OUTPUT_KEY)
    if not output:
        if given := next((key for key in (*_INPUTS.all(), ACTIVATION_KEY) if config.parameter(key)), None):
            raise wrong(config, given, f"expected '{OUTPUT_KEY}' beside it, too")
        return None
    found = next((each.data_type for each in config.output if each.name == output), None)
    if found not in _SCORES:
        raise wrong(config, OUTPUT_KEY, f"expected the name of an output of TYPE_FP32 or TYPE_FP16, got '{output}'")
    inputs = token_inputs(config, _INPUTS)
    return PairTensors(
        input=inputs.ids,
        output=output,
        mask=inputs.mask,
        types=inputs.types,
        rows=inputs.rows,
        length=inputs.length,
        takes_texts=inputs.takes_texts,
    )


def read_activation(config: ModelConfig, folder: Path) -> str:
    """What makes a score of the model's number: as the parameter says, else `config.json`, else `sigmoid`."""
    given = config.parameter(ACTIVATION_KEY)
    if given:
        if given not in ACTIVATIONS:
            names = ", ".join(ACTIVATIONS)
            raise InvalidArgument(f"parameters['{ACTIVATION_KEY}']: expected one of {names}, got '{given}'")
        return given
    members = read_config(folder)
    nested = members.get("sentence_transformers")
    named = nested.get("activation_fn") if isinstance(nested, dict) else None
    named = named or members.get("sbert_ce_default_activation_function")
    return "identity" if isinstance(named, str) and named.endswith(".Identity") else "sigmoid"
