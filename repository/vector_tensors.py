"""Vector tensors: how a model embeds texts that it takes as token ids, from its final configuration and its files.

Flow: configuration and tokenizer's folder -> [vector tensors] -> `protocol.text.model.VectorTensors`. A model is one if
its parameter `openai_embedding_output` names the output and its input has token ids; or by itself, if its tensors are
those of an export of Hugging Face's and nothing else, and a tokenizer lies beside it.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.text.model import VectorTensors
from protocol.text.pooling import POOLINGS
from repository.model_config import ModelConfig, ModelInput, ModelOutput
from repository.pair_tensors import OUTPUT_KEY as SCORE_OUTPUT_KEY
from repository.sentence_files import MODULES, SentenceFiles
from repository.text_files import read_config
from repository.token_tensors import IDS, MASK, TYPES, InputKeys, token_inputs, wrong

EMBEDDING_INPUT_KEY, EMBEDDING_OUTPUT_KEY = "openai_embedding_input", "openai_embedding_output"
_POOLING_KEY, _NORMALIZE_KEY = "openai_embedding_pooling", "openai_embedding_normalize"
_DIMENSIONS_KEY = "openai_embedding_dimensions"
_INPUTS = InputKeys(EMBEDDING_INPUT_KEY, "openai_embedding_mask", "openai_embedding_types", "texts")
# Parameters of a model that takes token ids, besides those of any that embeds.
_KEYS = (_INPUTS.mask, _INPUTS.types, _POOLING_KEY, _NORMALIZE_KEY, _DIMENSIONS_KEY)
# Outputs of exports, the best one first: a whole sentence-transformers model has both of the first two. BERT's own
# pooler was trained for something else, and is not taken unless a parameter names it.
_OUTPUTS = ("sentence_embedding", "token_embeddings", "last_hidden_state")
_VECTORS = (DataType.FP32, DataType.FP16)
_DEFAULT_POOLING = "mean"


def vector_tensors(config: ModelConfig) -> VectorTensors | None:
    """None for a model that embeds no token ids. Pooling, length and dimensions are yet to be read.

    Raises:
        InvalidArgument: a parameter names a tensor that the model has not, or of another datatype or shape.
    """
    output = _asked_output(config) if config.parameter(EMBEDDING_OUTPUT_KEY) else _usual_output(config)
    if output is None:
        if given := next((key for key in _KEYS if config.parameter(key)), None):
            raise wrong(config, given, f"expected '{EMBEDDING_OUTPUT_KEY}' beside it, and an input of token ids")
        return None
    inputs = token_inputs(config, _INPUTS)
    if left := _left_over(config, {inputs.ids, inputs.mask, inputs.types}):
        raise wrong(config, EMBEDDING_OUTPUT_KEY, f"expected inputs of tokens alone, there is '{left}', too")
    return VectorTensors(
        input=inputs.ids,
        output=output.name,
        mask=inputs.mask,
        types=inputs.types,
        rows=inputs.rows,
        length=inputs.length,
        pooling=_DEFAULT_POOLING if _has_tokens(config, inputs.ids, output) else "",
        size=max(output.dims[-1], 0),
    )


def is_asked_to_embed(config: ModelConfig) -> bool:
    """Whether a parameter says that the model embeds, and not its tensors alone."""
    return any(config.parameter(key) for key in (EMBEDDING_OUTPUT_KEY, *_KEYS))


def completed_vectors(config: ModelConfig, vectors: VectorTensors, files: SentenceFiles, folder: Path) -> VectorTensors:
    """With what parameters say of vectors, else the files of the folder. Blocks.

    Raises:
        InvalidArgument: a parameter is wrong, or the files want of vectors what is not done here.
    """
    return msgspec.structs.replace(
        vectors,
        pooling=_pooling(config, vectors, files),
        normalizes=_normalizes(config, files),
        dimensions=_dimensions(config, folder),
    )


def _asked_output(config: ModelConfig) -> ModelOutput | None:
    """The output that the parameter names; None where the model takes texts."""
    name, given = config.parameter(EMBEDDING_OUTPUT_KEY), config.parameter(EMBEDDING_INPUT_KEY)
    ids = _input(config, given or IDS)
    if ids is None or ids.data_type is DataType.BYTES:
        return None
    output = next((each for each in config.output if each.name == name), None)
    if output is None or output.data_type not in _VECTORS or not output.dims:
        raise wrong(
            config, EMBEDDING_OUTPUT_KEY, f"expected the name of an output of TYPE_FP32 or TYPE_FP16, got '{name}'"
        )
    return output


def _usual_output(config: ModelConfig) -> ModelOutput | None:
    """The output of an export, where the model has its inputs and no others, and does not score."""
    if config.parameter(SCORE_OUTPUT_KEY):
        return None
    outputs = {each.name: each for each in config.output if each.data_type in _VECTORS}
    name = next((each for each in _OUTPUTS if each in outputs), None)
    ids, mask = _input(config, IDS), _input(config, MASK)
    if name is None or ids is None or mask is None or _left_over(config, {IDS, MASK, TYPES}):
        return None
    output = outputs[name]
    return output if len(output.dims) - len(ids.dims) in (0, 1) and ids.data_type is not DataType.BYTES else None


def _has_tokens(config: ModelConfig, ids: str, output: ModelOutput) -> bool:
    """Whether the output has a vector for each token, and not one for each text."""
    given = _input(config, ids)
    more = len(output.dims) - len(given.dims) if given is not None else -1
    if more not in (0, 1):
        raise wrong(
            config,
            EMBEDDING_OUTPUT_KEY,
            f"output '{output.name}': expected one dimension more than input '{ids}', for the numbers of each token's "
            f"vector, or as many, for those of each text's, got dims {list(output.dims)}",
        )
    return more == 1


def _input(config: ModelConfig, name: str) -> ModelInput | None:
    return next((each for each in config.input if each.name == name), None)


def _left_over(config: ModelConfig, known: set[str]) -> str:
    """The first input that nobody would give a value; empty where there is none."""
    return next((each.name for each in config.input if each.name not in known and not each.optional), "")


def _pooling(config: ModelConfig, vectors: VectorTensors, files: SentenceFiles) -> str:
    given = config.parameter(_POOLING_KEY)
    if given and (given not in POOLINGS or not vectors.pooling):
        expected = f"one of {', '.join(POOLINGS)}" if vectors.pooling else f"none for '{vectors.output}'"
        raise InvalidArgument(f"parameters['{_POOLING_KEY}']: expected {expected}, got '{given}'")
    if given or not vectors.pooling:
        return given
    if files.unknown:
        raise InvalidArgument(
            f"'{MODULES}': the module '{files.unknown}' is not applied to vectors here: expected an export whose "
            f"output is 'sentence_embedding', or the parameter '{_POOLING_KEY}' for vectors without it"
        )
    return files.pooling or _DEFAULT_POOLING


def _normalizes(config: ModelConfig, files: SentenceFiles) -> bool:
    given = config.parameter(_NORMALIZE_KEY)
    if given not in ("", "true", "false"):
        raise InvalidArgument(f"parameters['{_NORMALIZE_KEY}']: expected 'true' or 'false', got '{given}'")
    return given == "true" if given else files.normalizes is not False


def _dimensions(config: ModelConfig, folder: Path) -> tuple[int, ...] | None:
    """Those that vectors may be cut to, as `config.json` says it for vLLM."""
    given = config.parameter(_DIMENSIONS_KEY)
    if given == "any":
        return None
    parts = [part.strip() for part in given.split(",")] if given else []
    if not all(re.fullmatch("[1-9][0-9]{0,8}", part) for part in parts):
        raise InvalidArgument(
            f"parameters['{_DIMENSIONS_KEY}']: expected numbers like '256, 512', or 'any', got '{given}'"
        )
    members = {} if parts else read_config(folder)
    named = members.get("matryoshka_dimensions")
    if isinstance(named, list) and all(type(each) is int and each > 0 for each in named):
        return tuple(named)
    return None if members.get("is_matryoshka") is True else tuple(map(int, parts))
