"""Pair tensors: how a cross-encoder takes pairs of texts, from its final configuration and its files.

Flow: configuration and tokenizer's folder -> [pair tensors] -> `protocol.text.model.PairTensors`. A model is one if its
parameter `openai_score_output` names the output with the scores. Blocks, for it reads `config.json`.
"""

from __future__ import annotations

from pathlib import Path

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.text.model import PairTensors
from repository.model_config import ModelConfig, ModelInput
from repository.text_files import read_config

OUTPUT_KEY, ACTIVATION_KEY = "openai_score_output", "openai_score_activation"
# Keys of the inputs, and the names that they have without them. The last two may be left out of a model.
_INPUTS = {
    "openai_score_input": "input_ids",
    "openai_score_mask": "attention_mask",
    "openai_score_types": "token_type_ids",
}
_IDS = (DataType.INT64, DataType.INT32)
_SCORES = (DataType.FP32, DataType.FP16)
ACTIVATIONS = ("sigmoid", "identity")
# Pairs of one inference, where the model says nothing.
_MANY_ROWS = 32


def pair_tensors(config: ModelConfig) -> PairTensors | None:
    """None for a model that is no cross-encoder. The activation is yet to be read.

    Raises:
        InvalidArgument: a parameter names a tensor that the model has not, or of another datatype or shape.
    """
    output = config.parameter(OUTPUT_KEY)
    if not output:
        if given := next((key for key in (*_INPUTS, ACTIVATION_KEY) if config.parameter(key)), None):
            raise _wrong(config, given, f"expected '{OUTPUT_KEY}' beside it, too")
        return None
    found = next((each.data_type for each in config.output if each.name == output), None)
    if found not in _SCORES:
        raise _wrong(config, OUTPUT_KEY, f"expected the name of an output of TYPE_FP32 or TYPE_FP16, got '{output}'")
    texts, mask, types = (_input(config, key, name) for key, name in _INPUTS.items())
    if texts is None:
        raise _wrong(config, "openai_score_input", "expected an input of token ids or texts, there is no 'input_ids'")
    if texts.data_type is DataType.BYTES:
        mask = types = None
    rows, length = _room(config, texts)
    return PairTensors(
        input=texts.name,
        output=output,
        takes_texts=texts.data_type is DataType.BYTES,
        mask="" if mask is None else mask.name,
        types="" if types is None else types.name,
        rows=rows,
        length=length,
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


def _input(config: ModelConfig, key: str, usual: str) -> ModelInput | None:
    """The input that a parameter names, or that has the usual name."""
    given = config.parameter(key)
    there = next((each for each in config.input if each.name == (given or usual)), None)
    allowed = (*_IDS, DataType.BYTES) if key == "openai_score_input" else _IDS
    if there is None and not given:
        return None
    if there is None or there.data_type not in allowed:
        kinds = ", ".join(kind.value for kind in allowed)
        found = "there is none of that name" if there is None else f"it is of {there.data_type.value}"
        raise _wrong(config, key, f"expected the name of an input of {kinds}, got '{given or usual}': {found}")
    return there


def _room(config: ModelConfig, texts: ModelInput) -> tuple[int, int]:
    """The most pairs of one inference, 0 where there is no dimension for them, and the tokens of each, 0 for any."""
    dims = list(texts.dims)
    rows = config.max_batch_size
    if not rows and len(dims) == 2:
        first = dims.pop(0)
        rows = _MANY_ROWS if first < 0 else first
        if first > 1:
            raise _wrong(config, "openai_score_input", f"input '{texts.name}' takes {first} pairs at once, no fewer")
    if len(dims) != 1 or (texts.data_type is DataType.BYTES and dims[0] not in (2, -1)):
        expected = "2 texts" if texts.data_type is DataType.BYTES else "one dimension, of tokens"
        raise _wrong(config, "openai_score_input", f"input '{texts.name}': expected {expected}, got dims {dims}")
    return rows, 0 if texts.data_type is DataType.BYTES else max(dims[0], 0)


def _wrong(config: ModelConfig, key: str, sentence: str) -> InvalidArgument:
    return InvalidArgument(f"model '{config.name}', parameters['{key}']: {sentence}")
