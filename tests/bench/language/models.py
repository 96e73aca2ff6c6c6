"""The models that are measured, as a repository, and what their streams ask."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repository.text_files import read_text_files
from tests.backends.engines.models import TINY as TINY_FILES
from tests.backends.engines.models import write_model
from tests.bench.peers import MODELS

NEW_TOKENS = 128
PROMPT = "A model repository is a folder of models. The scheduler gives batches to instances. " * 3
# The scripted engine replays, the tiny model computes next to nothing, and that of 30 million parameters a little.
SCRIPTED, PACED, TINY, SMALL, ONE_THREAD = "scripted", "paced", "tiny", "llama-30m", "llama-30m-one-thread"
PACED_STEP_SECONDS = 0.02
ADD_SUB = "add_sub"

Way = Literal["chat", "completions", "generate_stream"]


@dataclass(frozen=True, slots=True)
class Question:
    """What a stream asks: a path, a body, and what an event with text of the model has in it."""

    path: str
    body: bytes
    mark: str


def write_models(
    repository: Path, *, has_engine: bool, small: Path | None = None, step_seconds: float = 0.0, cache: int = 1
) -> None:
    """The scripted engine's, fast and at a pace; OpenVINO GenAI's, if it is here; and the benchmark's `add_sub`."""
    write_model(repository / SCRIPTED, "scripted", rule="repeat", step_seconds=step_seconds)
    write_model(repository / PACED, "scripted", rule="repeat", step_seconds=PACED_STEP_SECONDS)
    shutil.copytree(MODELS / ADD_SUB, repository / ADD_SUB)
    if has_engine:
        write_model(repository / TINY, "openvino_genai", cache_size=cache)
        if small is not None:
            _write_pointer(repository / SMALL, small, cache)
            _write_pointer(
                repository / ONE_THREAD, small, cache, INFERENCE_NUM_THREADS=1, INFERENCE_PRECISION_HINT="f32"
            )


def _write_pointer(folder: Path, files: Path, cache: int, **properties: object) -> None:
    """A model whose files lie elsewhere."""
    (folder / "1").mkdir(parents=True)
    parameters = {"model": files, "tokenizer": files, "cache_size": cache, **properties}
    entries = [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in parameters.items()]
    (folder / "config.pbtxt").write_text("\n".join(['backend: "openvino_genai"', *entries, ""]))


def prompt_tokens(folder: Path = TINY_FILES) -> list[int]:
    """The prompt as a model's tokenizer has it."""
    tokenizer = read_text_files(folder).tokenizer
    assert tokenizer is not None
    return tokenizer.encode(PROMPT)


def question(way: Way, model: str, new_tokens: int = NEW_TOKENS) -> Question:
    """Greedy, of exactly so many tokens."""
    sampling = {"temperature": 0, "max_tokens": new_tokens, "ignore_eos": True}
    openai = {"model": model, "stream": True, **sampling}
    match way:
        case "chat":
            messages = [{"role": "user", "content": PROMPT}]
            return Question("/v1/chat/completions", _json({**openai, "messages": messages}), '"content":"')
        case "completions":
            return Question("/v1/completions", _json({**openai, "prompt": PROMPT}), '"text":"')
        case "generate_stream":
            body = {"text_input": PROMPT, "stream": True, "sampling_parameters": json.dumps(sampling)}
            return Question(f"/v2/models/{model}/generate_stream", _json(body), '"text_output":"')


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
