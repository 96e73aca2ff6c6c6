"""Token tensors: which inputs of a model take the token ids of texts, by its configuration, and how many at once.

Flow: final configuration -> [token tensors] -> `pair_tensors`, `vector_tensors`. Parameters name the inputs, or they
have the names of Hugging Face's exports.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig, ModelInput

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
_IDS = (DataType.INT64, DataType.INT32)
# Texts of one inference, where the model says nothing.
_MANY_ROWS = 32


@dataclass(frozen=True, slots=True)
class InputKeys:
    """The parameters that name the inputs of a model, the last two of which it may lack. `texts` is how many texts its
    STRING input has for one answer, where such an input will do; `rows` is what the answers are for."""

    ids: str
    mask: str
    types: str
    rows: str
    texts: int = 0

    def all(self) -> tuple[str, str, str]:
        return self.ids, self.mask, self.types


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """`mask` and `types` are empty where there is none; `rows` and `length` are as in `TokenTensors`."""

    ids: str
    mask: str
    types: str
    rows: int
    length: int
    takes_texts: bool


def token_inputs(config: ModelConfig, keys: InputKeys) -> TokenInputs:
    """Raises:
    InvalidArgument: a parameter names an input that the model has not, or of another datatype or shape.
    """
    ids = _input(config, keys.ids, IDS, or_texts=keys.texts > 0)
    if ids is None:
        texts = " or texts" if keys.texts else ""
        raise wrong(config, keys.ids, f"expected an input of token ids{texts}, there is no '{IDS}'")
    takes_texts = ids.data_type is DataType.BYTES
    beside = ((keys.mask, MASK), (keys.types, TYPES))
    mask, types = (None, None) if takes_texts else (_input(config, key, usual) for key, usual in beside)
    rows, length = _room(config, keys, ids)
    return TokenInputs(
        ids=ids.name,
        mask="" if mask is None else mask.name,
        types="" if types is None else types.name,
        rows=rows,
        length=length,
        takes_texts=takes_texts,
    )


def wrong(config: ModelConfig, key: str, sentence: str) -> InvalidArgument:
    """What is wrong with a parameter."""
    return InvalidArgument(f"model '{config.name}', parameters['{key}']: {sentence}")


def _input(config: ModelConfig, key: str, usual: str, *, or_texts: bool = False) -> ModelInput | None:
    """The input that a parameter names, or that has the usual name."""
    given = config.parameter(key)
    there = next((each for each in config.input if each.name == (given or usual)), None)
    allowed = (*_IDS, DataType.BYTES) if or_texts else _IDS
    if there is None and not given:
        return None
    if there is None or there.data_type not in allowed:
        kinds = ", ".join(kind.value for kind in allowed)
        found = "there is none of that name" if there is None else f"it is of {there.data_type.value}"
        raise wrong(config, key, f"expected the name of an input of {kinds}, got '{given or usual}': {found}")
    return there


def _room(config: ModelConfig, keys: InputKeys, ids: ModelInput) -> tuple[int, int]:
    """The most texts of one inference, 0 where there is no dimension for them, and the tokens of each, 0 for any."""
    dims = list(ids.dims)
    is_text = ids.data_type is DataType.BYTES
    rows = config.max_batch_size
    if not rows and len(dims) == 2:
        first = dims.pop(0)
        rows = _MANY_ROWS if first < 0 else first
        if first > 1:
            raise wrong(config, keys.ids, f"input '{ids.name}' takes {first} {keys.rows} at once, no fewer")
    if len(dims) != 1 or (is_text and dims[0] not in (keys.texts, -1)):
        expected = f"{keys.texts} texts" if is_text else "one dimension, of tokens"
        raise wrong(config, keys.ids, f"input '{ids.name}': expected {expected}, got dims {dims}")
    return rows, 0 if is_text else max(dims[0], 0)
