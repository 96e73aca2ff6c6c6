"""Engines under test: how each serves the tiny Llama in float32, and what it has.

The scripted one repeats its prompt instead, so what it says is known too, and its adapters turn that around.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.backends.engines.models import TINY, tiny_tokenizer, write_adapter, write_model

ADAPTERS = ("a", "b")
# Longer than the tiny Llama's own, so that a generation can be met in its middle.
CONTEXT = 16_384
# In the environment of the workers under test.
MARK = b"TRIOTON_TESTED=engine"
BUILD = TINY.parent / "build.py"


@dataclass(frozen=True)
class EngineCase:
    """One engine. `package` is what must be installed for it.

    Attributes:
        computes: it generates by a model; else it replays.
        reports_cached: it says how many tokens of a prompt it has found in its cache.
        structures: it has structured output.
        requests: how many it gets at least from clients that leave.
    """

    name: str
    package: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    computes: bool = True
    reports_cached: bool = True
    structures: bool = True
    requests: int = 10_000

    @property
    def is_installed(self) -> bool:
        return not self.package or importlib.util.find_spec(self.package) is not None

    def write(self, folder: Path, run_folder: Path) -> Path:
        """A model's folder, with two adapters; `run_folder` keeps what takes long to make."""
        paths = {name: f"adapters/{name}" for name in ADAPTERS}
        write_model(
            folder,
            self.name,
            {"multi_lora.json": json.dumps(paths)},
            **{"ENV:TRIOTON_TESTED": "engine"},
            **self.parameters,
        )
        for seed, path in enumerate(paths.values()):
            write_adapter(folder / "1" / path, seed)
        if self.name == "vllm":
            for file in weights(run_folder).iterdir():
                shutil.copy(file, folder / "1" / file.name)
        lengthen(folder / "1")
        return folder

    def expected(self, entry: Mapping[str, Any]) -> list[int]:
        """The tokens that follow one of the recorded prompts greedily."""
        tokens: Sequence[int] = entry["token_ids"]
        if self.computes:
            return list(tokens)
        return list(itertools.islice(itertools.cycle(entry["prompt_token_ids"]), len(tokens)))

    def text(self, entry: Mapping[str, Any]) -> str:
        """The text of these tokens."""
        detokenizer = tiny_tokenizer().detokenizer(skip_special_tokens=True)
        return "".join(map(detokenizer.push, self.expected(entry))) + detokenizer.finish()


def lengthen(version: Path) -> None:
    """Give the model in a version's folder the context `CONTEXT`."""
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        found = json.loads((version / name).read_text())
        (version / name).write_text(json.dumps({**found, key: CONTEXT}))


def weights(run_folder: Path) -> Path:
    """The tiny Llama as a Hugging Face model."""
    folder = run_folder / "tiny-llama"
    if not folder.exists():
        made = run_folder / "tiny-llama.new"
        made.mkdir(exist_ok=True)
        subprocess.run([sys.executable, str(BUILD), str(made)], check=True, capture_output=True)
        made.rename(folder)
    return folder


ENGINES = (
    EngineCase(
        "scripted",
        parameters={"rule": "repeat", "adapters": "true", "step_seconds": 0.002, "max_num_seqs": 64},
        computes=False,
        structures=False,
    ),
    EngineCase(
        "openvino_genai",
        "openvino_genai",
        {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "INFERENCE_NUM_THREADS": 1,
            "num_kv_blocks": 512,
            "max_num_seqs": 64,
            # What it keeps of the shapes that it has seen grows for long, and would hide what is kept of generations.
            "CPU_RUNTIME_CACHE_CAPACITY": 0,
        },
        reports_cached=False,
    ),
    EngineCase(
        "vllm",
        "vllm",
        {
            "dtype": "float32",
            "enforce_eager": "true",
            "max_num_seqs": 64,
            "max_loras": 2,
            "ENV:VLLM_CPU_KVCACHE_SPACE": 1,
            "ENV:VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "ENV:OMP_NUM_THREADS": 1,
        },
        requests=400,
    ),
)
INSTALLED = tuple(each for each in ENGINES if each.is_installed)
