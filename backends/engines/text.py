"""Text parts of a model with an engine: its tokenizer and the length of its context, from its folder. Blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backends.engines.settings import EngineSettings
from backends.interface import ModelSource
from protocol.errors import InvalidArgument, ServerError
from protocol.text.tokenizer import Tokenizer
from repository.text_files import TOKENIZER, read_text_files, tokenizer_folder


@dataclass(frozen=True, slots=True)
class TextParts:
    """`folder` has the tokenizer; `context_length` is in tokens, 0 where the folder does not say."""

    tokenizer: Tokenizer
    context_length: int
    folder: Path


def read_text_parts(source: ModelSource, settings: EngineSettings) -> TextParts:
    """Raises ServerError."""
    folder = _folder(source, settings)
    try:
        files = read_text_files(folder)
    except ServerError as error:
        raise type(error)(f"model '{source.name}': {error.message}") from None
    if files.tokenizer is None:
        raise InvalidArgument(f"model '{source.name}': an engine needs a tokenizer, but '{folder}' has no {TOKENIZER}")
    return TextParts(files.tokenizer, files.context_length or 0, folder)


def _folder(source: ModelSource, settings: EngineSettings) -> Path:
    """What `tokenizer` names, from the version's folder on; else the version's folder, the model's, or the engine's,
    where a tokenizer lies there."""
    version = source.version_directory.absolute()
    if settings.tokenizer:
        return version / settings.tokenizer
    return tokenizer_folder(version, source.model_directory.absolute(), settings.directory) or settings.directory
