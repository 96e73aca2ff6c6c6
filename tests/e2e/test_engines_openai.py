"""Engines behind the OpenAI interface, by OpenAI's own client: what they generate, and clients and workers that go; and
behind Anthropic's messages."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.backends.engines.models import tiny_tokenizer, write_model, write_scripted
from tests.e2e.engine_calls import is_free, load, runs
from tests.e2e.server_process import ServerProcess, eventually

pytestmark = pytest.mark.slow

TEXT = "The scheduler gives größere batches 🙂 to instances."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("engines")
    write_scripted(repository)
    write_thinking(repository / "thinks")
    with ServerProcess(repository=repository) as started:
        started.addresses  # noqa: B018 (waits until it serves)
        yield started


THOUGHTS = "<think>The scheduler gives batches to instances, and they give them back, one after the other"


def write_thinking(folder: Path) -> None:
    """A model that thinks for longer than anybody waits, whatever it is asked."""
    tokens = tiny_tokenizer().encode(f"{THOUGHTS}{', and on' * 100}", add_special_tokens=False)
    files = {"script.json": json.dumps([{"tokens": tokens}])}
    write_model(folder, "scripted", files, rule="script", step_seconds=0.001, reasoning_parser="think")


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with of(server) as made:
        yield made


def of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{server.addresses['http']}/v1", api_key="none", timeout=60, max_retries=0)


def streamed(client: openai.OpenAI, model: str, prompt: str, max_tokens: int = 400) -> str:
    with client.completions.create(
        model=model, prompt=prompt, temperature=0, max_tokens=max_tokens, stream=True
    ) as chunks:
        return "".join(chunk.choices[0].text for chunk in chunks)


def test_a_stream_is_the_whole_text_in_pieces(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="echo", prompt=TEXT, max_tokens=400)
    assert whole.choices[0].text == TEXT
    assert whole.choices[0].finish_reason == "stop"
    assert streamed(client, "echo", TEXT) == TEXT
    tokens = whole.usage
    assert tokens is not None
    assert tokens.total_tokens == tokens.prompt_tokens + tokens.completion_tokens


def test_a_stop_string_and_the_length_end_it(client: openai.OpenAI) -> None:
    stopped = client.completions.create(model="echo", prompt=TEXT, stop=["ere bat"]).choices[0]
    assert (stopped.text, stopped.finish_reason) == ("The scheduler gives größ", "stop")
    cut = client.completions.create(model="echo", prompt=TEXT, max_tokens=3)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 3
    assert TEXT.startswith(cut.choices[0].text)


def test_the_last_tokens_of_a_prompt_are_what_the_engine_gets(client: openai.OpenAI) -> None:
    tokenizer = tiny_tokenizer()
    answer = client.completions.create(model="echo", prompt=TEXT, extra_body={"truncate_prompt_tokens": 4})
    ids = tokenizer.encode(TEXT, add_special_tokens=False)[-4:]
    assert answer.choices[0].text == tokenizer.decode(ids)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4


def test_logprobs_name_tokens_by_their_ids(client: openai.OpenAI) -> None:
    """So the client has the very tokens of the answer."""
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode(TEXT)
    more: Any = {"extra_body": {"return_tokens_as_token_ids": True}}
    answer = client.completions.create(model="echo", prompt=TEXT, logprobs=1, **more).choices[0]
    assert answer.logprobs is not None
    assert answer.logprobs.tokens is not None
    assert answer.logprobs.tokens[: len(ids)] == [f"token_id:{each}" for each in ids]
    chat = client.chat.completions.create(
        model="echo", messages=[{"role": "user", "content": TEXT}], logprobs=True, **more
    ).choices[0]
    assert chat.logprobs is not None
    assert all(each.token.startswith("token_id:") for each in chat.logprobs.content or ())


def test_a_chat_has_the_models_template(client: openai.OpenAI) -> None:
    """The scripted engine repeats its prompt, without special tokens."""
    answer = client.chat.completions.create(model="echo", messages=[{"role": "user", "content": TEXT}])
    assert TEXT in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_messages_tell_the_stop_sequence_and_what_was_cached(server: ServerProcess) -> None:
    with anthropic.Anthropic(base_url=f"http://{server.addresses['http']}", api_key="none", max_retries=0) as client:
        first, again = (
            client.messages.create(
                model="echo", max_tokens=400, messages=[{"role": "user", "content": TEXT}], stop_sequences=["ere bat"]
            )
            for _ in range(2)
        )
    (block,) = again.content
    assert block.type == "text"
    assert block.text.endswith("The scheduler gives größ")
    assert (again.stop_reason, again.stop_sequence) == ("stop_sequence", "ere bat")
    assert again.usage.cache_read_input_tokens
    sizes = [each.usage.input_tokens + (each.usage.cache_read_input_tokens or 0) for each in (first, again)]
    assert sizes[0] == sizes[1]


def test_responses_go_on_from_what_is_kept_and_tell_what_was_cached(client: openai.OpenAI) -> None:
    first = client.responses.create(model="echo", input=TEXT, max_output_tokens=200)
    again = client.responses.create(model="echo", input="More.", previous_response_id=first.id, max_output_tokens=200)
    assert TEXT in first.output_text
    assert again.output_text.count(TEXT) == 2
    assert again.usage is not None
    assert again.usage.input_tokens_details.cached_tokens > 0


def test_a_response_in_the_background_frees_the_engine_when_it_is_forgotten(
    server: ServerProcess, client: openai.OpenAI
) -> None:
    made = client.responses.create(model="endless", input="on and on", max_output_tokens=400, background=True)
    assert runs(server)
    client.responses.delete(made.id)
    assert is_free(server)


def test_a_prompt_of_token_ids_is_not_cut_anew(client: openai.OpenAI) -> None:
    tokenizer = tiny_tokenizer()
    ids = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "instances"]
    assert ids != tokenizer.encode("instances", add_special_tokens=False)
    for limit in (openai.omit, 400):
        answer = client.completions.create(model="echo", prompt=ids, max_tokens=limit)
        assert answer.choices[0].text == "instances"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(ids)


def test_what_does_not_fit_the_context_is_the_clients_mistake(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="512"):
        client.completions.create(model="echo", prompt=TEXT, max_tokens=100_000)


def test_a_client_that_leaves_frees_the_engine(server: ServerProcess, client: openai.OpenAI) -> None:
    chunks = client.completions.create(model="endless", prompt="on and on", max_tokens=400, stream=True)
    next(iter(chunks))
    assert runs(server)
    chunks.close()
    assert is_free(server)


def test_a_worker_that_is_killed_ends_its_streams_with_an_error_and_serves_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    repository = tmp_path_factory.mktemp("killed")
    write_scripted(repository)
    with ServerProcess(repository=repository) as server, of(server) as client:
        workers = server.descendants()
        chunks = client.completions.create(model="endless", prompt="on and on", max_tokens=400, stream=True)
        stream = iter(chunks)
        next(stream)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="endless"):
            list(stream)
        assert eventually(lambda: httpx.get(f"http://{server.addresses['http']}/v2/health/ready").status_code == 200)
        assert streamed(client, "echo", TEXT) == TEXT


def test_a_full_queue_says_when_to_try_again(tmp_path: Path) -> None:
    """On all routes that a request may come by."""
    write_model(
        tmp_path / "endless",
        "scripted",
        rule="repeat",
        step_seconds=0.01,
        max_inflight_requests=1,
        max_queue_requests=1,
    )
    wanted: dict[str, Any] = {"prompt": "on", "max_tokens": 400, "model": "endless"}
    content = json.dumps(wanted).encode()
    with ServerProcess(repository=tmp_path) as server, of(server) as client:
        address = server.addresses["http"]
        first = client.completions.with_raw_response.create(**wanted, stream=True)
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        host, port = address.split(":")
        with first.parse(), socket.create_connection((host, int(port))) as second:
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content)
            second.sendall(head + content)
            assert eventually(lambda: load(server, "endless").get("num_requests_waiting") == 1)
            with pytest.raises(openai.InternalServerError, match="requests wait") as failure:
                client.completions.create(**wanted)
            headers = failure.value.response.headers
            assert (failure.value.status_code, headers["retry-after"]) == (503, "1")
            assert (headers["x-ratelimit-remaining-requests"], len(headers["x-request-id"])) == ("0", 32)
            refused = httpx.post(f"http://{address}/v2/models/endless/generate", json={"text_input": "on"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("budget", [8, 20])
def test_a_model_thinks_no_longer_than_its_budget(server: ServerProcess, budget: int) -> None:
    """To the token; what it says after that is the answer, and the engine has ended what it had begun."""
    tokenizer = tiny_tokenizer()
    thought = tokenizer.decode(tokenizer.encode(THOUGHTS, add_special_tokens=False)[:budget])
    with anthropic.Anthropic(base_url=f"http://{server.addresses['http']}", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "thinks", "max_tokens": 40, "messages": [{"role": "user", "content": "x"}]}
        thinking: Any = {"type": "enabled", "budget_tokens": budget}
        whole = client.messages.create(thinking=thinking, **asked)
        with client.messages.stream(thinking=thinking, **asked) as stream:
            streamed = stream.get_final_message()
    answers: Any = (whole, streamed)
    for answer in answers:
        thoughts, text = answer.content
        assert (thoughts.type, text.type) == ("thinking", "text")
        assert thoughts.thinking == thought.removeprefix("<think>")
        assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 40)
        assert THOUGHTS.startswith(text.text[: len(THOUGHTS)])
    with of(server) as openai_client:
        asked = {"model": "thinks", "messages": [{"role": "user", "content": "x"}], "max_tokens": 40}
        made = openai_client.chat.completions.create(**asked, extra_body={"thinking_token_budget": budget})
    message: Any = made.choices[0].message
    assert message.reasoning_content == thought.removeprefix("<think>")
    assert is_free(server, "thinks")
