"""Folders of language models as other tools write them: of Hugging Face, or converted for OpenVINO GenAI.

Flow: a folder -> [model folders] -> its kind, by the names of its files, and the engine that runs it. Such a folder may
be a model of a repository by itself, without versions and `config.pbtxt`, or the version of one.
"""

from __future__ import annotations

import enum
import json
import os
from dataclasses import dataclass
from pathlib import Path

OPENVINO_ENGINE, GPU_ENGINE = "openvino_genai", "vllm"
CONFIG, OPENVINO_MODEL, ENGINE_ARGUMENTS = "config.json", "openvino_model.xml", "model.json"
SAFETENSORS = ".safetensors"
_GGUF = ".gguf"
_LARGEST_ARGUMENTS = 1 << 20
# Beside safetensors: weights in other forms, and what is for people.
_UNREAD = frozenset({".md", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf", ".png", ".jpg"})


class FolderKind(enum.Enum):
    """What a folder has of a language model."""

    OPENVINO = "a model of OpenVINO GenAI"
    HUGGING_FACE = "a model of Hugging Face"
    ENGINE_ARGUMENTS = "the arguments of an engine, in model.json"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine of models that name none: the one that was asked for, else the one that suits their files. `on_gpu`
    is that of Hugging Face's files where there is a GPU."""

    asked: str = ""
    on_gpu: str = ""

    def of(self, kind: FolderKind) -> str:
        if self.asked:
            return self.asked
        return OPENVINO_ENGINE if kind is FolderKind.OPENVINO else self.on_gpu or OPENVINO_ENGINE


ANY_ENGINE = EngineChoice()


def folder_kind(folder: Path) -> FolderKind | None:
    """None for a folder without a language model, or one that cannot be read."""
    if os.path.isfile(folder / OPENVINO_MODEL):  # unlike the methods of Path this never raises
        return FolderKind.OPENVINO
    if os.path.isfile(folder / CONFIG) and _has_file(folder, SAFETENSORS):
        return FolderKind.HUGGING_FACE
    return FolderKind.ENGINE_ARGUMENTS if _names_model(folder / ENGINE_ARGUMENTS) else None


def is_bare_model(folder: Path) -> bool:
    """Whether a folder is a model without version folders: a language model's files lie in it as they are."""
    if folder_kind(folder) in (None, FolderKind.ENGINE_ARGUMENTS):
        return False
    return not any(entry.isdecimal() and os.path.isdir(folder / entry) for entry in _names(folder))


def model_files(folder: Path) -> list[Path]:
    """The files of a model in its folder, by name: of Hugging Face's, those that are read beside safetensors.

    Raises OSError.
    """
    unread: frozenset[str] = frozenset() if folder_kind(folder) is FolderKind.OPENVINO else _UNREAD
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".") and path.suffix.lower() not in unread
    ]


def gguf_file(folder: Path) -> str:
    """The name of a file of llama.cpp's format, which no engine here reads; empty where there is none."""
    return min((name for name in _names(folder) if name.lower().endswith(_GGUF)), default="")


def _has_file(folder: Path, suffix: str) -> bool:
    return any(name.endswith(suffix) for name in _names(folder))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _names_model(path: Path) -> bool:
    """Whether it is a file of an engine's arguments, and not another `model.json`."""
    try:
        if path.stat().st_size > _LARGEST_ARGUMENTS:
            return False
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("model"), str)
