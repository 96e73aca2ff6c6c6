"""vLLM with a tiny LLaVA, which sees what torch sees in float32."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.backends.engines.models import write_parameters
from tests.backends.engines.test_vllm import RESTART_SECONDS, VLLM
from tests.backends.engines.tiny_llama.build import make_tokenizer
from tests.backends.engines.tiny_llava.build import IMAGE, NEW_TOKENS, SIDE, make_model
from tests.e2e.engine_calls import is_free, url
from tests.e2e.server_process import ServerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.skipif(not VLLM.is_installed, reason="vllm is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed"),
]

SAMPLING = f'{{"temperature": 0, "max_tokens": {NEW_TOKENS}, "ignore_eos": true}}'
QUESTION = f"<|im_start|>user\nWhat is {IMAGE} this?<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True)
class Served:
    """`seen` is what torch makes of some prompts with pictures."""

    server: ServerProcess
    seen: list[dict[str, Any]]

    def generate(self, prompt: str, *images: str, **inputs: Any) -> httpx.Response:
        body = {"text_input": prompt, "sampling_parameters": SAMPLING, "exclude_input_in_output": True, **inputs}
        if images:
            body["image"] = images
        return httpx.post(url(self.server, "llava", "generate"), json=body, timeout=60)

    def text(self, prompt: str, *images: str) -> str:
        answer = self.generate(prompt, *images)
        assert answer.status_code == 200, answer.text
        found: str = answer.json()["text_output"]
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    repository = tmp_path_factory.mktemp("vllm-sees")
    version = repository / "llava" / "1"
    version.mkdir(parents=True)
    make_tokenizer(version)
    seen = make_model(version, behind="")
    name_as_published(version / "model.safetensors")
    write_parameters(repository / "llava", "vllm", **VLLM.parameters)
    with ServerProcess(repository=repository, start_seconds=RESTART_SECONDS) as server:
        server.addresses  # noqa: B018 (waits until it serves)
        yield Served(server, seen)


def name_as_published(file: Path) -> None:
    """Name the weights of what sees as models on Hugging Face's hub do: transformers 5 leaves a part of that out."""
    data, tower = file.read_bytes(), "vision_tower.vision_model."
    begin = 8 + int.from_bytes(data[:8], "little")
    saved = json.loads(data[8:begin])
    named = {name if tower in name else name.replace("vision_tower.", tower): saved[name] for name in saved}
    head = json.dumps(named).encode()
    file.write_bytes(len(head).to_bytes(8, "little") + head + data[begin:])


def picture(color: tuple[int, int, int]) -> str:
    """A PNG of one color, in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), color).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_what_it_sees_is_what_torch_sees(served: Served) -> None:
    def ask(seen: dict[str, Any]) -> tuple[str, int]:
        found = served.generate(seen["prompt"], *map(picture, seen["colors"]), return_num_input_tokens=True).json()
        return found["text_output"], found["num_input_tokens"]

    expected = [(each["text"], each["prompt_tokens"]) for each in served.seen]
    assert len({text for text, _ in expected}) == len(expected)
    assert [ask(each) for each in served.seen] == expected
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, served.seen * 4)) == expected * 4, "in one batch"
    assert is_free(served.server, "llava")


def test_a_chat_with_a_picture(served: Served) -> None:
    image = picture((255, 0, 0))
    parts = [
        {"type": "text", "text": "What is "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
        {"type": "text", "text": " this?"},
    ]
    body = {"model": "llava", "messages": [{"role": "user", "content": parts}], "max_tokens": NEW_TOKENS}
    address = f"http://{served.server.addresses['http']}/v1/chat/completions"
    answer = httpx.post(address, json={**body, "temperature": 0, "ignore_eos": True}, timeout=60).json()
    assert answer["choices"][0]["message"]["content"] == served.text(QUESTION, image)
    assert served.text(QUESTION, image) != served.text(QUESTION, picture((0, 64, 255)))


@pytest.mark.parametrize(
    ("prompt", "count", "text"),
    [
        (f"What is {IMAGE}?", 0, "the prompt has 1 marks of pictures, and there are 0 pictures with it"),
        ("What is this?", 1, "fewer marks of pictures"),
        (f"{IMAGE} or {IMAGE}", 1, "the prompt has 2 marks of pictures, and there are 1 pictures with it"),
        (f"What is {IMAGE}?", 2, "fewer marks of pictures"),
    ],
)
def test_marks_and_pictures_that_do_not_agree(served: Served, prompt: str, count: int, text: str) -> None:
    refused = served.generate(prompt, *[picture((1, 2, 3))] * count)
    assert refused.status_code == 400, refused.text
    assert text in refused.json()["error"]
    assert served.text(served.seen[0]["prompt"]) == served.seen[0]["text"]
