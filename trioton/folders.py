"""Folders of language models as arguments of commands: which folder is meant, and the name that it is served under.

Flow: a word of the command line, a path or an id of Hugging Face's hub -> [folders] -> folder and name. An id is looked
up in the hub's cache on this machine; nothing is fetched.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from protocol.errors import InvalidArgument
from repository.layout import ModelDirectory, check_model_name
from repository.model_folders import FolderKind, folder_kind, gguf_file, is_bare_model
from repository.text_files import TOKENIZER
from trioton.flags.fields import UsageError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
# A folder of the hub's cache: models--<owner>--<name>/snapshots/<commit>.
_HUB_FOLDER, _SNAPSHOTS = "models--", "snapshots"
_NOT_IN_NAMES = re.compile(r"[^\w.-]+", re.ASCII)


def folder_of_word(word: str) -> Path | None:
    """The folder of a language model that a word means; None where it means something else.

    Raises:
        UsageError: it means one that cannot be served, or is not on this machine.
    """
    path = Path(word)
    if not os.path.exists(path):  # unlike the methods of Path this never raises
        return _hub_folder(word) if _HUB_ID.fullmatch(word) and not word.startswith(".") else None
    if os.path.isfile(path) and path.suffix.lower() == ".gguf":
        raise UsageError(_no_gguf(path))
    if not os.path.isdir(path):
        return None
    if not is_bare_model(path):
        if os.path.isfile(path / "config.json") and (name := gguf_file(path)):
            raise UsageError(_no_gguf(path / name))
        return None
    if not os.path.isfile(path / TOKENIZER):
        raise UsageError(
            f"'{word}' is {_kind(path).value}, but has no {TOKENIZER}: in Python, "
            f"transformers.AutoTokenizer.from_pretrained('{word}').save_pretrained('{word}') writes it"
        )
    return path


def served_folder(folder: Path, name: str = "") -> ModelDirectory:
    """The folder as a model of its own, under a name, or that of the folder.

    Raises:
        UsageError: no model can have this name.
    """
    path = Path(os.path.abspath(folder))
    chosen = name or folder_name(path)
    if not chosen:
        raise UsageError(f"'{folder}' tells no name for the model; give one with --served-model-name")
    try:
        check_model_name(chosen)
    except InvalidArgument as error:
        raise UsageError(f"--served-model-name: {error}") from None
    if chosen.startswith(".") or not chosen.isprintable():
        raise UsageError(f"--served-model-name: '{chosen}' begins with a dot, or is no printable text")
    return ModelDirectory(chosen, path, path.parent, is_flat=True)


def folder_name(folder: Path) -> str:
    """A valid model name of a folder's, which may be empty: in the hub's cache that of the model, without its owner."""
    path = Path(os.path.abspath(folder))
    if path.parent.name == _SNAPSHOTS and path.parent.parent.name.startswith(_HUB_FOLDER):
        text = path.parent.parent.name.rpartition("--")[2]
    else:
        text = path.name
    return _NOT_IN_NAMES.sub("-", text).strip("-.")


def _hub_folder(word: str) -> Path | None:
    """What the hub's cache has of an id; None where nothing can read the cache, or the word is no id."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError:
        return None
    try:
        folder = Path(snapshot_download(word, local_files_only=True))
    except HFValidationError:
        return None
    except LocalEntryNotFoundError:
        raise UsageError(
            f"'{word}' is neither a folder nor a model in the cache of Hugging Face's hub on this machine; "
            f"hf download {word} fetches it"
        ) from None
    if not is_bare_model(folder):
        raise UsageError(f"'{word}' is in the hub's cache, but '{folder}' has no config.json with safetensors")
    return folder


def _kind(folder: Path) -> FolderKind:
    kind = folder_kind(folder)
    assert kind is not None  # as `is_bare_model` says
    return kind


def _no_gguf(path: Path) -> str:
    return (
        f"'{path}' is in the format of llama.cpp, which no engine here reads: take the model's folder with config.json "
        "and safetensors"
    )
