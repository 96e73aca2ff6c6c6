"""Models with engines, for tests: folders around the tiny Llama's files."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.text.tokenizer import Tokenizer
from repository.text_files import read_text_files

TINY = Path(__file__).parent / "tiny_llama" / "model"
GREEDY: list[dict[str, Any]] = json.loads((TINY.parent / "greedy.json").read_text())
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "chat_template.jinja")

needs_openvino_genai = pytest.mark.skipif(
    importlib.util.find_spec("openvino_genai") is None, reason="openvino-genai is not installed"
)


def tiny_tokenizer() -> Tokenizer:
    """The tokenizer of the tiny Llama."""
    found = read_text_files(TINY).tokenizer
    assert found is not None
    return found


def write_model(folder: Path, backend: str, files: Mapping[str, str] | None = None, /, **parameters: object) -> Path:
    """A model's folder, with its configuration and version 1. The scripted engine needs no more than text files."""
    version = folder / "1"
    version.mkdir(parents=True)
    for path in TINY.iterdir():
        if backend != "scripted" or path.name in TEXT_FILES:
            shutil.copy(path, version / path.name)
    for name, text in (files or {}).items():
        (version / name).write_text(text)
    entries = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()
    ]
    (folder / "config.pbtxt").write_text("\n".join([f'backend: "{backend}"', *entries, ""]))
    return folder


def write_scripted(repository: Path) -> None:
    """`echo`, which repeats its prompt once, and `endless`, which does so until its length ends it."""
    write_model(repository / "echo", "scripted")
    write_model(repository / "endless", "scripted", rule="repeat", step_seconds=0.01)


def write_adapter(folder: Path, seed: int) -> None:
    """Random weights for the tiny Llama's attention, in the form of a safetensors file."""
    folder.mkdir(parents=True)
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    made = np.random.default_rng(seed)
    arrays = {}
    for layer in range(2):
        for name, size in (("q_proj", 64), ("v_proj", 32)):
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            arrays[f"{place}.lora_A.weight"] = made.normal(0, 0.3, (4, 64)).astype(np.float32)
            arrays[f"{place}.lora_B.weight"] = made.normal(0, 0.3, (size, 4)).astype(np.float32)
    header, position = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in arrays.values())
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def sampling(**fields: object) -> str:
    """The tensor `sampling_parameters`."""
    return json.dumps(fields)
