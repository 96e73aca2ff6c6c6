"""Text models: from a model's final configuration and its files to what an edge has to know of a model with text.

Flow: model directory and final configuration -> [text_models] -> `protocol.text.model.TextModel`, or None for a model
without text. A model is one if it has a STRING input `text_input` and a STRING output `text_output`, an input
`embedding_request`, the tensors of an export that embeds, or if its `parameters` name its tensors
(`openai_text_input`, `openai_embedding_output`, `openai_score_output`, …).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, ServerError
from protocol.text.chat_template import ChatTemplate
from protocol.text.model import PairTensors, TensorNames, TextModel, VectorTensors
from protocol.text.output_parser import output_parser
from protocol.text.special_tokens import SpecialTokens
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig, ModelInput, ModelOutput
from repository.pair_tensors import OUTPUT_KEY as SCORE_OUTPUT_KEY
from repository.pair_tensors import pair_tensors, read_activation
from repository.sentence_files import read_sentence_files
from repository.text_files import TextFiles, read_text_files, tokenizer_folder
from repository.vector_tensors import (
    EMBEDDING_INPUT_KEY,
    EMBEDDING_OUTPUT_KEY,
    completed_vectors,
    is_asked_to_embed,
    vector_tensors,
)

logger = logging.getLogger(__name__)

TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
EMBEDDING_REQUEST = "embedding_request"
# What they are called in `parameters`, if they have other names.
TEXT_INPUT_KEY, TEXT_OUTPUT_KEY = "openai_text_input", "openai_text_output"
# Parameters that ask for a tokenizer or chat template: what is wrong with them then fails the load.
_ASKING = ("tokenizer", "chat_template", "tool_call_parser", "reasoning_parser")
_ADAPTERS_FILE = "multi_lora.json"
_ENGINE_FILE = "model.json"


# By these inputs a model is in the manner of TensorRT-LLM's LLM-API model.
_LLM_API = {"streaming", "sampling_param_max_tokens"}
_LLM_API_NAMES = TensorNames(
    stream="streaming", exclude_input_in_output="sampling_param_exclude_input_from_output", accumulates=True
)


@dataclass(frozen=True, slots=True)
class TextDefaults:
    """What holds for models that say nothing themselves.

    Attributes:
        tokenizer: the folder for models without a tokenizer.
        chat_template: the path of a file or a template, in place of the tokenizer's own; empty for none.
        tool_call_parser: empty for none.
    """

    tokenizer: Path | None = None
    chat_template: str = ""
    tool_call_parser: str = ""


NO_TEXT_DEFAULTS = TextDefaults()


def text_tensors(config: ModelConfig) -> TensorNames | None:
    """The names of a text model's tensors; None for a model without text.

    Raises:
        InvalidArgument: a parameter names a tensor that the model has not, or of another datatype.
    """
    inputs = {each.name: each for each in config.input}
    outputs = {each.name: each for each in config.output}
    texts = _pair(config, TEXT_INPUT_KEY, TEXT_OUTPUT_KEY, inputs, outputs, DataType.BYTES)
    if texts is None:
        found = _is_text(inputs.get(TEXT_INPUT)) and _is_text(outputs.get(TEXT_OUTPUT))
        texts = (TEXT_INPUT, TEXT_OUTPUT) if found else ("", "")
    embeds_ids = vector_tensors(config) is not None
    keys = (EMBEDDING_INPUT_KEY, EMBEDDING_OUTPUT_KEY)
    vectors = ("", "") if embeds_ids else _pair(config, *keys, inputs, outputs, DataType.FP32) or ("", "")
    has_request = _is_text(inputs.get(EMBEDDING_REQUEST)) and _is_text(outputs.get(TEXT_OUTPUT))
    if not (texts[0] or vectors[0] or has_request or embeds_ids or pair_tensors(config)):
        return None
    made = TensorNames() if not inputs.keys() >= _LLM_API else _LLM_API_NAMES
    return msgspec.structs.replace(
        made,
        text_input=texts[0],
        text_output=texts[1] or (TEXT_OUTPUT if has_request else ""),
        embedding_request=EMBEDDING_REQUEST if has_request else "",
        embedding_input=vectors[0],
        embedding_output=vectors[1],
    )


def read_text_model(
    directory: ModelDirectory, config: ModelConfig, version: int, defaults: TextDefaults = NO_TEXT_DEFAULTS
) -> TextModel | None:
    """What an edge has to know of one version; None, too, where it could embed, but has no tokenizer of its own, and
    nothing asks for that. Blocks: a large vocabulary takes a second.

    Raises:
        InvalidArgument: a parameter or a file is wrong; the sentence names it.
        Unsupported: a package is missing that the files need.
    """
    names = text_tensors(config)
    if names is None:
        return None
    tool_parser = config.parameter("tool_call_parser") or defaults.tool_call_parser
    reasoning_parser = config.parameter("reasoning_parser")
    try:
        output_parser(tool_parser, reasoning_parser)
    except InvalidArgument as error:
        raise InvalidArgument(f"model '{config.name}', parameters: {error.message}") from None
    folder = directory.path if directory.is_flat else directory.path / str(version)
    try:
        parts = _read_parts(directory, folder, config, defaults)
    except ServerError as error:
        text = f"model '{config.name}': {error.message}"
        if _is_asked_for(config, defaults):
            raise type(error)(text) from None
        # Whatever runs the model may read files that are for it alone, as it did before there was this interface.
        logger.warning("%s; its tokenizer and chat template are not used by the OpenAI interface", text)
        parts = _Parts(_files(None, None), _context_length(config))
    if not (names.text_input or names.embedding_input or names.embedding_request or parts.pairs or parts.vectors):
        return None
    files = parts.files
    return TextModel(
        name=config.name,
        version=version,
        tokenizer=files.tokenizer,
        chat_template=files.chat_template,
        context_length=parts.context_length,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        adapters=_adapters(config.name, folder),
        names=names,
        pairs=parts.pairs,
        vectors=parts.vectors,
        pictures=parts.files.pictures,
        loaded_at=int(time.time()),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """What files say of a model, and how it takes token ids."""

    files: TextFiles
    context_length: int | None
    pairs: PairTensors | None = None
    vectors: VectorTensors | None = None


def _read_parts(directory: ModelDirectory, version: Path, config: ModelConfig, defaults: TextDefaults) -> _Parts:
    own = _tokenizer_folder(directory.path, version, config)
    folder = own or defaults.tokenizer
    template = _template(directory.path, config.parameter("chat_template") or defaults.chat_template)
    files = _files(folder, template)
    length = _context_length(config)
    pairs = _read_pairs(config, files, folder or version)
    vectors = vector_tensors(config)
    if vectors is None or (own is None and not is_asked_to_embed(config)):
        return _Parts(files, length or files.context_length, pairs)
    _check_tokenizer(files, vectors.input)
    sentences = read_sentence_files(folder or version)
    vectors = completed_vectors(config, vectors, sentences, folder or version)
    known = [size for size in (files.context_length, sentences.max_length) if size is not None]
    return _Parts(files, length or min(known, default=None), pairs, vectors)


def _read_pairs(config: ModelConfig, files: TextFiles, folder: Path) -> PairTensors | None:
    pairs = pair_tensors(config)
    if pairs is None:
        return None
    if not pairs.takes_texts:
        _check_tokenizer(files, pairs.input)
    return msgspec.structs.replace(pairs, activation=read_activation(config, folder))


def _check_tokenizer(files: TextFiles, ids: str) -> None:
    if files.tokenizer is None:
        raise InvalidArgument(f"its input '{ids}' takes token ids: expected a tokenizer, there is none")


def _is_asked_for(config: ModelConfig, defaults: TextDefaults) -> bool:
    """Whether what is wrong with the files fails the load."""
    if config.parameter(SCORE_OUTPUT_KEY) or any(config.parameter(key) for key in _ASKING):
        return True
    if vector_tensors(config) is not None:
        return is_asked_to_embed(config)
    return bool(defaults.tokenizer or defaults.chat_template)


def _is_text(tensor: ModelInput | ModelOutput | None) -> bool:
    return tensor is not None and tensor.data_type is DataType.BYTES


def _pair(
    config: ModelConfig,
    input_key: str,
    output_key: str,
    inputs: Mapping[str, ModelInput],
    outputs: Mapping[str, ModelOutput],
    output_type: DataType,
) -> tuple[str, str] | None:
    """The input and the output that two parameters name; None where neither is there."""
    input_name, output_name = config.parameter(input_key), config.parameter(output_key)
    if not (input_name or output_name):
        return None
    for key, name, there, datatype in (
        (input_key, input_name, inputs.get(input_name), DataType.BYTES),
        (output_key, output_name, outputs.get(output_name), output_type),
    ):
        if there is None or there.data_type is not datatype:
            kind = "input" if key == input_key else "output"
            found = "there is none of that name" if there is None else f"it is of {there.data_type.value}"
            raise InvalidArgument(
                f"model '{config.name}', parameters['{key}']: expected the name of an {kind} of {datatype.value}, got "
                f"'{name}': {found}"
            )
    return input_name, output_name


def _files(folder: Path | None, chat_template: str | None) -> TextFiles:
    if folder is not None:
        return read_text_files(folder, chat_template=chat_template)
    template = None if chat_template is None else ChatTemplate(chat_template)
    return TextFiles(None, template, SpecialTokens(), None)


def _tokenizer_folder(model: Path, version: Path, config: ModelConfig) -> Path | None:
    """The folder with the tokenizer's files: as `tokenizer` says, else that of the version, of the model, or the one
    that the engine's own file names."""
    if given := config.parameter("tokenizer"):
        folder = version / given
        if not folder.is_dir():
            raise InvalidArgument(
                f"model '{config.name}', parameters['tokenizer']: expected a folder, relative to '{version}', got "
                f"'{given}'"
            )
        return folder
    engine = {"model": config.parameter("model"), **_read_json(config.name, version / _ENGINE_FILE)}
    named = (version / str(engine[key]) for key in ("tokenizer", "model") if engine.get(key))
    return tokenizer_folder(version, model, *named)


def _template(model: Path, given: str) -> str | None:
    """The text of `chat_template`, which may be the name of a file in the model's folder."""
    if not given:
        return None
    file = model / given if len(given) < 256 and "\n" not in given and "{" not in given else None
    if file is None:
        return given
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"parameters['chat_template']: file '{file}' cannot be read: {error}") from None


def _context_length(config: ModelConfig) -> int | None:
    """What `max_model_len` says; None where it is 0, too, as for the engines."""
    given = config.parameter("max_model_len") or "0"
    if not (given.isascii() and given.isdecimal()) or len(given) > 18:
        raise InvalidArgument(
            f"model '{config.name}', parameters['max_model_len']: expected a number of tokens, got '{given}'"
        )
    return int(given) or None


def _adapters(name: str, version: Path) -> Mapping[str, str]:
    """The adapters in `multi_lora.json`, unless the engine's own file does not enable them."""
    adapters = _read_json(name, version / _ADAPTERS_FILE)
    engine = _read_json(name, version / _ENGINE_FILE)
    if engine and str(engine.get("enable_lora", "")).lower() != "true":
        return {}
    return {key: str(path) for key, path in adapters.items()}


def _read_json(name: str, file: Path) -> dict[str, Any]:
    """The members of a file; none where there is no such file."""
    if not file.is_file():
        return {}
    try:
        members: dict[str, Any] = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"model '{name}': file '{file}' is not a JSON object: {error}") from None
    return members
