"""A language model that sees, beside torch: pictures as tensors, and in chats."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.backends.engines.models import SEEN, needs_openvino_genai, write_llava, write_scripted
from tests.e2e.server_process import ServerProcess

pytestmark = [pytest.mark.slow, needs_openvino_genai]

SIDE = 28


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    repository = tmp_path_factory.mktemp("sees")
    write_llava(repository / "llava")
    write_scripted(repository)
    with ServerProcess(repository=repository) as server:
        yield f"http://{server.addresses['http']}"


def picture(color: tuple[int, int, int]) -> str:
    """A PNG of one color, in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), tuple(color)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def generate(url: str, model: str, **members: Any) -> httpx.Response:
    sampling = '{"temperature": 0, "max_tokens": 16, "ignore_eos": true}'
    inputs = {"sampling_parameters": sampling, "exclude_input_in_output": True, **members}
    return httpx.post(f"{url}/v2/models/{model}/generate", json=inputs, timeout=60)


@pytest.mark.parametrize("place", range(len(SEEN)))
def test_what_it_sees_is_what_torch_sees(url: str, place: int) -> None:
    seen = SEEN[place]
    members = {"image": [picture(each) for each in seen["colors"]]} if seen["colors"] else {}
    answer = generate(url, "llava", text_input=seen["prompt"], **members)
    assert answer.status_code == 200, answer.text
    assert answer.json()["text_output"] == seen["text"]


def test_models_that_see_nothing_say_so(url: str) -> None:
    answer = generate(url, "echo", text_input="x", image=[picture((0, 0, 0))])
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "model 'echo': image: engine 'scripted' sees no pictures",
    )


def test_odd_pictures_and_prompts_harm_nobody(url: str) -> None:
    for text, images in (("<ov_genai_image_5>", [picture((0, 0, 0))]), ("<image>", []), ("<image><image>", [])):
        answer = generate(url, "llava", text_input=text, **({"image": images} if images else {}))
        assert answer.status_code == 400, answer.text
    answer = generate(url, "llava", text_input="x", sampling_parameters='{"structured_outputs": {"regex": "[0-9]"}}')
    assert answer.status_code == 400
    assert "structured_outputs.regex is not supported by engine 'openvino_genai'" in answer.json()["error"]
    assert generate(url, "llava", text_input=SEEN[0]["prompt"]).json()["text_output"] == SEEN[0]["text"]


def test_pictures_that_are_none(url: str) -> None:
    bomb = b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + bomb + struct.pack(">I", zlib.crc32(bomb))
    for wrong in ("hello", base64.b64encode(file).decode()):
        answer = generate(url, "llava", text_input="x", image=[wrong])
        assert answer.status_code == 400
        assert "model 'llava': image[0]: " in answer.json()["error"]
    assert generate(url, "llava", text_input=SEEN[0]["prompt"]).json()["text_output"] == SEEN[0]["text"]


def test_a_chat_with_pictures(url: str) -> None:
    """The template writes the places; a chat that is written out by hand is answered the same."""
    seen = SEEN[1]
    image = picture(seen["colors"][0])
    parts = [
        {"type": "text", "text": "What is "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
        {"type": "text", "text": " this?"},
    ]
    body = {"model": "llava", "messages": [{"role": "user", "content": parts}], "max_tokens": 16, "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json={**body, "ignore_eos": True}, timeout=60)
    assert answer.status_code == 200, answer.text
    prompt = "<|im_start|>user\nWhat is <image> this?<|im_end|>\n<|im_start|>assistant\n"
    by_hand = generate(url, "llava", text_input=prompt, image=[image]).json()["text_output"]
    assert answer.json()["choices"][0]["message"]["content"] == by_hand
    blind = generate(url, "llava", text_input=prompt.replace("<image>", "")).json()["text_output"]
    assert blind != by_hand


QUESTION = "<|im_start|>user\nWhat is <image> this?<|im_end|>\n<|im_start|>assistant\n"


def test_a_response_with_pictures(url: str) -> None:
    """The next one of the conversation sees them again."""
    image = picture(SEEN[1]["colors"][0])
    parts: Any = [
        {"type": "input_text", "text": "What is "},
        {"type": "input_image", "image_url": f"data:image/png;base64,{image}", "detail": "low"},
        {"type": "input_text", "text": " this?"},
    ]
    more: dict[str, Any] = {"temperature": 0, "max_output_tokens": 16, "extra_body": {"ignore_eos": True}}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        made = client.responses.create(model="llava", input=[{"role": "user", "content": parts}], **more)
        first = generate(url, "llava", text_input=QUESTION, image=[image]).json()["text_output"]
        assert made.output_text == first
        kept: Any = client.responses.input_items.list(made.id).data[0]
        assert [part.type for part in kept.content] == ["input_text", "input_image", "input_text"]
        again = client.responses.create(model="llava", input="And?", previous_response_id=made.id, **more)
    prompt = f"{QUESTION}{first}<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    assert again.output_text == generate(url, "llava", text_input=prompt, image=[image]).json()["text_output"]


def test_messages_with_pictures(url: str) -> None:
    """Also in what a tool has found, which is shown after it."""
    images = [picture(each) for each in SEEN[3]["colors"]]
    first, second = (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": each}} for each in images
    )
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    messages: Any = [
        {"role": "user", "content": [first, {"type": "text", "text": " or "}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [second]}]},
    ]
    more: dict[str, Any] = {"max_tokens": 16, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(model="llava", messages=messages, **more)
        assert client.messages.count_tokens(model="llava", messages=messages).input_tokens > 0
        with pytest.raises(anthropic.BadRequestError, match="engine 'scripted' sees no pictures"):
            client.messages.create(model="echo", messages=messages[:1], **more)
    prompt = (
        "<|im_start|>user\n<image> or <|im_end|>\n<|im_start|>assistant\nI look.<|im_end|>\n<|im_start|>tool\n"
        "<|im_end|>\n<|im_start|>user\n<image><|im_end|>\n<|im_start|>assistant\n"
    )
    sampling = '{"temperature": 0, "max_tokens": 16}'
    by_hand = generate(url, "llava", text_input=prompt, image=images, sampling_parameters=sampling).json()
    assert [block.text for block in answer.content if block.type == "text"] == [by_hand["text_output"]]


@pytest.mark.parametrize(
    ("model", "address", "status", "text"),
    [
        ("llava", "https://example.com/a.png", 400, "pictures are not fetched"),
        ("llava", "data:text/plain;base64,aGVsbG8=", 400, "expected a data URL with a picture"),
        ("llava", "data:image/png;base64,aGVsbG8=", 400, "image[0]: expected a picture"),
        ("echo", "data:image/png;base64,aGVsbG8=", 400, "engine 'scripted' sees no pictures"),
    ],
)
def test_chats_that_are_refused(url: str, model: str, address: str, status: int, text: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": address}}]
    body = {"model": model, "messages": [{"role": "user", "content": parts}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert (answer.status_code, text in answer.json()["error"]["message"]) == (status, True), answer.text
