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
LLAVA = Path(__file__).parent / "tiny_llava" / "model"
GREEDY: list[dict[str, Any]] = json.loads((TINY.parent / "greedy.json").read_text())
RANK, ALPHA = 4, 16  # of adapters
SEEN: list[dict[str, Any]] = json.loads((LLAVA.parent / "greedy.json").read_text())
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "chat_template.jinja")

needs_openvino_genai = pytest.mark.skipif(
    importlib.util.find_spec("openvino_genai") is None, reason="openvino-genai is not installed"
)


def tiny_tokenizer() -> Tokenizer:
    """The tokenizer of the tiny Llama."""
    found = read_text_files(TINY).tokenizer
    assert found is not None
    return found


def write_scripted_adapter(folder: Path, **settings: object) -> Path:
    """An adapter of the scripted engine; `settings` are those of its adapter.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter.json").write_text(json.dumps(settings))
    return folder


def write_model(folder: Path, backend: str, files: Mapping[str, str] | None = None, /, **parameters: object) -> Path:
    """A model's folder, with its configuration and version 1. The scripted engine needs no more than text files."""
    version = folder / "1"
    version.mkdir(parents=True)
    for path in TINY.iterdir():
        if backend != "scripted" or path.name in TEXT_FILES:
            shutil.copy(path, version / path.name)
    for name, text in (files or {}).items():
        (version / name).write_text(text)
    write_parameters(folder, backend, **parameters)
    return folder


def write_parameters(folder: Path, backend: str, **parameters: object) -> None:
    """The configuration of a model."""
    (folder / "config.pbtxt").write_text("\n".join([f'backend: "{backend}"', *_entries(parameters), ""]))


def _entries(parameters: Mapping[str, object]) -> list[str]:
    return [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]


def write_llava(folder: Path, **more: object) -> None:
    """The tiny LLaVA, which sees."""
    shutil.copytree(LLAVA, folder / "1")
    precision = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    write_parameters(folder, "openvino_genai", **{**precision, **more})


def write_scripted(repository: Path) -> None:
    """`echo`, which repeats its prompt once, and `endless`, which does so until its length ends it."""
    write_model(repository / "echo", "scripted")
    write_model(repository / "endless", "scripted", rule="repeat", step_seconds=0.01)


def write_adapter(folder: Path, seed: int, hidden: int = 64) -> dict[str, np.ndarray]:
    """Random weights for the tiny Llama's attention, in the form of a safetensors file; returns what is added to each
    of its matrices."""
    folder.mkdir(parents=True)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    made = np.random.default_rng(seed)
    arrays, deltas = {}, {}
    for layer in range(2):
        for name, size in (("q_proj", 64), ("v_proj", 32)):
            place = f"model.layers.{layer}.self_attn.{name}"
            down = made.normal(0, 0.3, (RANK, hidden)).astype(np.float32)
            up = made.normal(0, 0.3, (size, RANK)).astype(np.float32)
            arrays[f"base_model.model.{place}.lora_A.weight"] = down
            arrays[f"base_model.model.{place}.lora_B.weight"] = up
            deltas[place] = up @ down * (ALPHA / RANK)
    header, position = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in arrays.values())
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return deltas


def sampling(**fields: object) -> str:
    """The tensor `sampling_parameters`."""
    return json.dumps(fields)
