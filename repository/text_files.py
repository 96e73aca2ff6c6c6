"""Text files of a language model: tokenizer, chat template and special tokens, from a folder as of Hugging Face.

Flow: a folder with `tokenizer.json`, `tokenizer_config.json`, `config.json`, … -> [text files] -> what a text model
(`protocol.text.model.TextModel`) is made of. Blocks: called in a thread, when a version loads.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from protocol.errors import InvalidArgument, NotFound, ServerError
from protocol.text.chat_template import ChatTemplate
from protocol.text.pictures import PictureTokens
from protocol.text.special_tokens import SpecialTokens
from protocol.text.tokenizer import Tokenizer
from protocol.text.tokenizer_file import TokenizerFile
from repository.picture_files import picture_tokens

TOKENIZER = "tokenizer.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_CONFIG = "config.json"
_GENERATION_CONFIG = "generation_config.json"
_TEMPLATE = "chat_template.jinja"
_TOOLS_TEMPLATE = "chat_templates/tool_use.jinja"
# Bytes of a file. The largest vocabularies take some 35 MB.
MAX_TOKENIZER_BYTES = 1 << 28
MAX_FILE_BYTES = 1 << 24
# Tokens. Tokenizers that know no length say 10 ** 30.
_MAX_SANE_LENGTH = 1 << 31
_CONTEXT_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "max_target_positions",
)


@dataclass(frozen=True, slots=True)
class TextFiles:
    """What a folder says of its model's text; None for what it does not say.

    Attributes:
        context_length: in tokens: the smallest of what the model's configuration and its tokenizer's have.
        pictures: what pictures take of a prompt.
    """

    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    special_tokens: SpecialTokens
    context_length: int | None
    pictures: PictureTokens | None = None


def tokenizer_folder(version: Path, model: Path, *others: Path) -> Path | None:
    """The first folder in which a tokenizer lies: that of the version, of the model, or one of the others."""
    return next((place for place in (version, model, *others) if (place / TOKENIZER).is_file()), None)


def read_text_files(folder: Path, *, chat_template: str | None = None) -> TextFiles:
    """Reads a folder. `chat_template` is the text of a template to take in place of the folder's own.

    Raises:
        InvalidArgument: a file is not what its name says; the error names the file.
        NotFound: there is no such folder, or a file cannot be read.
        Unsupported: a package that a file needs is not installed.
    """
    if not folder.is_dir():
        raise NotFound(f"'{folder}': expected the folder of a model, there is none")
    tokenizer_config = read_object(folder / _TOKENIZER_CONFIG)
    config = read_object(folder / _CONFIG)
    texts = _token_texts(read_object(folder / "special_tokens_map.json")) | _token_texts(tokenizer_config)
    tokenizer = _read_tokenizer(folder / TOKENIZER)
    special = SpecialTokens(texts, _eos_token_ids(folder, config, tokenizer, texts.get("eos_token")))
    return TextFiles(
        None if tokenizer is None else tokenizer.with_special(special),
        _chat_template(folder, tokenizer_config, special, chat_template),
        special,
        _context_length(config, tokenizer_config),
        picture_tokens(config),
    )


def read_config(folder: Path) -> Mapping[str, Any]:
    """The model's own configuration; empty where there is none.

    Raises:
        InvalidArgument: it is no JSON object.
        NotFound: it cannot be read.
    """
    return read_object(folder / _CONFIG)


def read_json(path: Path) -> Any:
    """What a file of JSON holds; None where there is no such file.

    Raises:
        InvalidArgument: it is no JSON.
        NotFound: it cannot be read.
    """
    text = _read(path, MAX_FILE_BYTES)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"'{path}': not JSON: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is no such file. Raises as `read_json`."""
    found = read_json(path)
    if not isinstance(found, dict | None):
        raise InvalidArgument(f"'{path}': expected a JSON object, got {type(found).__name__}")
    return found or {}


def _read_tokenizer(path: Path) -> Tokenizer | None:
    data = _read_bytes(path, MAX_TOKENIZER_BYTES)
    if data is None:
        return None
    try:
        return Tokenizer.from_file(TokenizerFile.of(path, data), data)
    except ServerError as error:
        raise type(error)(f"'{path}': {error}") from None


def _token_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens by role. A token is its text, or an object with it."""
    found = {}
    for role, token in config.items():
        text = token.get("content") if isinstance(token, dict) else token
        if role.endswith("_token") and isinstance(text, str):
            found[role] = text
    return found


def _eos_token_ids(
    folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer | None, eos_token: str | None
) -> tuple[int, ...]:
    """Those of the generation's configuration, else of the model's; and the tokenizer's own."""
    generation = read_object(folder / _GENERATION_CONFIG)
    ids = _token_ids(folder / _GENERATION_CONFIG, generation)
    for part in (config, _text_part(config)):
        ids = ids or _token_ids(folder / _CONFIG, part)
    if tokenizer is not None and eos_token is not None and (own := tokenizer.token_id(eos_token)) is not None:
        ids = [*ids, own]
    return tuple(dict.fromkeys(ids))


def _token_ids(path: Path, config: Mapping[str, Any]) -> list[int]:
    named = config.get("eos_token_id")
    ids = [] if named is None else named if isinstance(named, list) else [named]
    if not all(type(each) is int and each >= 0 for each in ids):
        raise InvalidArgument(f"'{path}': eos_token_id: expected a token id or a list of them, got {named!r:.100}")
    return ids


def _context_length(config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> int | None:
    parts = (config, _text_part(config))
    lengths = [part.get(name) for part in parts for name in _CONTEXT_LENGTHS]
    lengths.append(tokenizer_config.get("model_max_length"))
    sane = [length for length in lengths if type(length) is int and 0 < length <= _MAX_SANE_LENGTH]
    return min(sane, default=None)


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the language model in one that sees or hears, too."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else {}


def _chat_template(
    folder: Path, tokenizer_config: Mapping[str, Any], special: SpecialTokens, given: str | None
) -> ChatTemplate | None:
    path, templates = (folder, {"default": given}) if given is not None else _templates(folder, tokenizer_config)
    if not templates:
        return None
    if "default" not in templates:
        names = ", ".join(sorted(templates))
        raise InvalidArgument(f"'{path}': chat_template: expected one that is named 'default', got {names}")
    try:
        return ChatTemplate(templates["default"], special.texts, with_tools=templates.get("tool_use"))
    except ServerError as error:
        raise type(error)(f"'{path}': {error}") from None


def _templates(folder: Path, tokenizer_config: Mapping[str, Any]) -> tuple[Path, Mapping[str, str]]:
    """The file that has the templates, and they by name: the newest form of those that there are."""
    text = _read(folder / _TEMPLATE, MAX_FILE_BYTES)
    if text is not None:
        tools_text = _read(folder / _TOOLS_TEMPLATE, MAX_FILE_BYTES)
        return folder / _TEMPLATE, {"default": text} | ({} if tools_text is None else {"tool_use": tools_text})
    path = folder / "chat_template.json"
    named = read_object(path).get("chat_template")
    if named is None:
        path, named = folder / _TOKENIZER_CONFIG, tokenizer_config.get("chat_template")
    if named is None or isinstance(named, str):
        return path, {} if named is None else {"default": named}
    return path, _by_name(path, named)


def _by_name(path: Path, named: Any) -> Mapping[str, str]:
    is_list = isinstance(named, list) and all(isinstance(each, dict) for each in named)
    pairs = [(each.get("name"), each.get("template")) for each in named] if is_list else []
    if not pairs or not all(isinstance(part, str) for pair in pairs for part in pair):
        raise InvalidArgument(
            f"'{path}': chat_template: expected a text, or a list of objects with 'name' and 'template', "
            f"got {named!r:.100}"
        )
    return dict(pairs)


def _read(path: Path, limit: int) -> str | None:
    """The text of a file; None where there is none."""
    data = _read_bytes(path, limit)
    try:
        return None if data is None else StringIO(data.decode(), newline=None).read()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"'{path}': not UTF-8: byte {error.start}") from None


def _read_bytes(path: Path, limit: int) -> bytes | None:
    """The bytes of a file; None where there is none."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"'{path}': expected a regular file")
        if status.st_size > limit:
            raise InvalidArgument(f"'{path}': expected at most {limit} bytes, got {status.st_size}")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise NotFound(f"failed to read '{path}': {error.strerror}") from None
