"""A language model that sees, beside torch: pictures as tensors, and in chats."""

from __future__ import annotations

import base64
import functools
import http.server
import io
import queue
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

from repository.text_files import read_text_files
from tests.backends.engines.models import LLAVA, SEEN, needs_openvino_genai, write_llava, write_scripted
from tests.e2e.engine_calls import load
from tests.e2e.server_process import ServerProcess, eventually

pytestmark = [pytest.mark.slow, needs_openvino_genai]

SIDE = 28
# A chat with `around` in the model's template.
QUESTION = "<|im_start|>user\nWhat is <image> this?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A host with `red.png` and `text.png`, which is none."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "red.png").write_bytes(base64.b64decode(picture(SEEN[1]["colors"][0])))
    (folder / "text.png").write_bytes(b"hello")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as host:
        thread = threading.Thread(target=host.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{host.server_port}"
        host.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pictures: str) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("sees")
    write_llava(repository / "llava")
    write_llava(repository / "bls", tensor_names="tensorrt_llm")
    write_scripted(repository)
    allowed = pictures.removeprefix("http://")
    with ServerProcess(f"--openai-allowed-media-domains={allowed}", repository=repository) as made:
        yield made


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return f"http://{server.addresses['http']}"


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


def test_pictures_as_clients_of_tensorrt_llm_send_them(url: str, server: ServerProcess, pictures: str) -> None:
    seen = SEEN[3]
    inputs: dict[str, Any] = {
        "text_input": seen["prompt"],
        "max_tokens": 16,
        "end_id": -1,
        "exclude_input_in_output": True,
    }
    urls = [f"data:image/png;base64,{picture(each)}" for each in seen["colors"]]
    answer = httpx.post(f"{url}/v2/models/bls/generate", json={**inputs, "image_url_input": urls}, timeout=60)
    assert answer.json().get("text_output") == seen["text"], answer.text
    fetched = {**inputs, "text_input": SEEN[1]["prompt"], "image_url_input": f"{pictures}/red.png"}
    assert (
        httpx.post(f"{url}/v2/models/bls/generate", json=fetched, timeout=60).json()["text_output"] == SEEN[1]["text"]
    )
    pixels = np.stack([np.full((SIDE, SIDE, 3), each, np.uint8) for each in seen["colors"]])
    arrays = {"text_input": np.array([seen["prompt"]], object), "image_bytes_input": pixels}
    arrays |= {"max_tokens": np.array([16], np.int32), "end_id": np.array([-1], np.int32)}
    arrays |= {"exclude_input_in_output": np.array([True])}
    with grpcclient.InferenceServerClient(server.addresses["grpc"]) as client:
        found: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: found.put(error or result.as_numpy("text_output")[0].decode()))
        client.async_stream_infer("bls", [infer_input(*each) for each in arrays.items()])
        assert found.get(timeout=60) == seen["text"]


def infer_input(name: str, array: np.ndarray) -> grpcclient.InferInput:
    made = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


def torch_tokens(prompt: str) -> int:
    """The tokens that torch's model was given for a prompt, with the line's end that the library puts behind a picture:
    4 of each picture, of 28 by 28 in patches of 14."""
    tokenizer = read_text_files(LLAVA).tokenizer
    assert tokenizer is not None
    parts = prompt.split("<image>")
    texts = [f"{tokenizer.bos_token}{parts[0]}", *(f"\n{part}" for part in parts[1:])]
    return sum(len(tokenizer.encode(each, add_special_tokens=False)) for each in texts) + 4 * (len(parts) - 1)


@pytest.mark.parametrize("place", range(len(SEEN)))
def test_what_pictures_take_is_counted(url: str, place: int) -> None:
    seen = SEEN[place]
    members = {"image": [picture(each) for each in seen["colors"]]} if seen["colors"] else {}
    answer = generate(url, "llava", text_input=seen["prompt"], return_num_input_tokens=True, **members)
    assert answer.json()["num_input_tokens"] == torch_tokens(seen["prompt"])


def test_usage_and_metrics_count_pictures(url: str, server: ServerProcess) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture((1, 2, 3))}"}}
    expected = torch_tokens(QUESTION)
    before = load(server, "llava")["prompt_tokens_total"]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        *_, last = client.chat.completions.create(
            model="llava", messages=around(image), max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    assert last.usage is not None
    assert last.usage.prompt_tokens == expected
    assert eventually(lambda: load(server, "llava")["prompt_tokens_total"] == before + expected)


def test_pictures_are_counted_before_they_are_seen(url: str) -> None:
    """But not the line's end that the library puts behind each."""
    image = picture((1, 2, 3))
    part: Any = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    expected = torch_tokens(QUESTION) - 1
    answer = httpx.post(f"{url}/tokenize", json={"model": "llava", "messages": around(part)}, timeout=60).json()
    assert (answer["count"], len(answer["tokens"]), answer["tokens"].count(2048)) == (expected, expected, 4)
    item = {"type": "input_image", "image_url": part["image_url"]["url"]}
    given = {"model": "llava", "input": around(item, "input_text")}
    made = httpx.post(f"{url}/v1/responses/input_tokens", json=given, timeout=60)
    assert made.json()["input_tokens"] == expected
    many = [{"role": "user", "content": [part] * 130}]
    refused = httpx.post(f"{url}/v1/chat/completions", json={"model": "llava", "messages": many}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


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
        counted = client.messages.count_tokens(model="llava", messages=messages).input_tokens
        assert counted == answer.usage.input_tokens - len(images)  # the line's end that the library puts behind each
        with pytest.raises(anthropic.BadRequestError, match="engine 'scripted' sees no pictures"):
            client.messages.create(model="echo", messages=messages[:1], **more)
    prompt = (
        "<|im_start|>user\n<image> or <|im_end|>\n<|im_start|>assistant\nI look.<|im_end|>\n<|im_start|>tool\n"
        "<|im_end|>\n<|im_start|>user\n<image><|im_end|>\n<|im_start|>assistant\n"
    )
    sampling = '{"temperature": 0, "max_tokens": 16}'
    by_hand = generate(url, "llava", text_input=prompt, image=images, sampling_parameters=sampling).json()
    assert [block.text for block in answer.content if block.type == "text"] == [by_hand["text_output"]]


def by_hand(url: str) -> str:
    """The answer to `around`, as the model gives it to a client that sends the picture itself."""
    sampling = '{"temperature": 0, "max_tokens": 16}'
    image = [picture(SEEN[1]["colors"][0])]
    text: str = generate(url, "llava", text_input=QUESTION, image=image, sampling_parameters=sampling).json()[
        "text_output"
    ]
    assert text
    return text


def around(part: Any, kind: str = "text") -> Any:
    """A message with a picture."""
    parts = [{"type": kind, "text": "What is "}, part, {"type": kind, "text": " this?"}]
    return [{"role": "user", "content": parts}]


def test_a_chat_with_a_picture_of_another_host(url: str, pictures: str) -> None:
    chat = around({"type": "image_url", "image_url": {"url": f"{pictures}/red.png"}})
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(model="llava", messages=chat, max_tokens=16, temperature=0)
    assert answer.choices[0].message.content == by_hand(url)


def test_a_response_with_a_picture_of_another_host(url: str, pictures: str) -> None:
    items = [
        around({"type": "input_image", "image_url": f"{pictures}/{name}"}, "input_text") for name in ("red.png", "no")
    ]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        made = client.responses.create(model="llava", input=items[0], max_output_tokens=16, temperature=0)
        assert made.output_text == by_hand(url)
        with pytest.raises(
            openai.BadRequestError, match=r"'input\[0\].content\[1\].image_url': .* status 404"
        ) as caught:
            client.responses.create(model="llava", input=items[1])
    assert caught.value.param == "input[0].content[1].image_url"


def test_a_message_with_a_picture_of_another_host(url: str, pictures: str) -> None:
    red, text = (
        around({"type": "image", "source": {"type": "url", "url": f"{pictures}/{name}.png"}})
        for name in ("red", "text")
    )
    more: dict[str, Any] = {"model": "llava", "max_tokens": 16, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(messages=red, **more)
        assert "".join(block.text for block in answer.content if block.type == "text") == by_hand(url)
        with pytest.raises(anthropic.BadRequestError, match=r"image\[0\]: expected a picture"):
            client.messages.create(messages=text, **more)


@pytest.mark.parametrize(
    ("model", "address", "status", "text"),
    [
        ("llava", "https://example.com/a.png", 400, "is none of the hosts that this server asks"),
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
