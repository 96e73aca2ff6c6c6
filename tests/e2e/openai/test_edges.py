"""Text models in edge processes, by the official clients: who answers, and what becomes of it when models change."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.e2e.edge_processes import edges_of, metric
from tests.e2e.openai.repository import CHATML, add_scripted, build_text_repository
from tests.e2e.openai.test_client import HELLO
from tests.e2e.server_process import ServerProcess, eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edge_texts")
    build_text_repository(folder)
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServerProcess]:
    flags = ("--edge-processes=1", "--model-control-mode=explicit", "--load-model=*", "--openai-port=0")
    with ServerProcess(*flags, "--openai-address=127.0.0.1", repository=models) as running:
        assert len(running.addresses) == 3
        yield running


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return f"http://{server.addresses['http']}"


def relayed(server: ServerProcess) -> int:
    """By now: the edge tells it once a second, so that one more is waited for."""
    before = metric(server, "trioton_edge_relayed_requests_total", edge="1")
    httpx.get(f"http://{server.addresses['http']}/v2/health/live").raise_for_status()

    def is_told() -> bool:
        return metric(server, "trioton_edge_relayed_requests_total", edge="1") > before

    assert eventually(is_told)
    return int(metric(server, "trioton_edge_relayed_requests_total", edge="1"))


def chats(url: str, **asked: Any) -> tuple[str, str]:
    """What both official clients are told, whole and as a stream."""
    say: Any = [{"role": "user", "content": "say hello"}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chunks = list(client.chat.completions.create(model="chat", messages=say, stream=True))
        first = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as other:
        made: Any = other.messages.create(model="chat", messages=say, max_tokens=64)
    return first, made.content[0].text


def test_the_edge_answers(server: ServerProcess, url: str) -> None:
    own = f"http://{server.wait_for_line('Started OpenAI frontend at ([0-9.:]+)').group(1)}"
    before = relayed(server)
    for each in (url, own):
        assert chats(each) == (HELLO, HELLO)
        with openai.OpenAI(base_url=f"{each}/v1", api_key="none", max_retries=0) as client:
            assert client.embeddings.create(model="vectors", input="banana").data[0].embedding == [6, 3, 0.5]
            assert "chat" in [model.id for model in client.models.list()]
            assert client.responses.create(model="chat", input="say hello", store=False).output_text == HELLO
    assert relayed(server) == before + 1, "only the one that it is counted by"


def test_what_the_core_keeps_is_relayed(server: ServerProcess, url: str) -> None:
    before = relayed(server)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        made = client.responses.create(model="chat", input="say hello")
        assert client.responses.retrieve(made.id).output_text == HELLO
        more = client.responses.create(model="chat", input="say hello", previous_response_id=made.id, store=False)
        assert more.output_text == HELLO
    assert relayed(server) == before + 3 + 1


def test_a_reload_with_another_tokenizer(server: ServerProcess, url: str, models: Path) -> None:
    """Every call sees the one that the core has loaded."""

    def tokens() -> list[int]:
        answer = httpx.post(f"{url}/tokenize", json={"model": "fresh", "prompt": "say hello"}).raise_for_status()
        found: list[int] = answer.json()["tokens"]
        return found

    add_scripted(models, "fresh", CHATML)
    file = models / "fresh" / "1" / "tokenizer.json"
    load = f"{url}/v2/repository/models/fresh/load"
    httpx.post(load).raise_for_status()
    first = tokens()
    text = json.loads(file.read_text())
    vocabulary = text["model"]["vocab"]
    swapped = {first[-1]: first[-2], first[-2]: first[-1]}
    text["model"]["vocab"] = {word: swapped.get(place, place) for word, place in vocabulary.items()}
    file.write_text(json.dumps(text))
    assert tokens() == first, "not before it is loaded"
    httpx.post(load).raise_for_status()
    assert tokens() == [*first[:-2], first[-1], first[-2]]


def test_a_file_that_was_changed_after_the_load(server: ServerProcess, url: str, models: Path) -> None:
    """The edge has no tokenizer of this model yet, and cannot come by the one that the core has."""
    add_scripted(models, "stale", CHATML)
    file = models / "stale" / "1" / "tokenizer.json"
    file.write_text(file.read_text() + " ")  # else it would be that of other models
    httpx.post(f"{url}/v2/repository/models/stale/load").raise_for_status()
    file.write_text("{}")
    before = relayed(server)
    answer = httpx.post(f"{url}/tokenize", json={"model": "stale", "prompt": "say hello"})
    assert answer.json()["tokens"][0] == 0
    say = [{"role": "user", "content": "say hello"}]
    body = {"model": "stale", "messages": say, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as stream:
        assert [line for line in stream.iter_lines() if line][-1] == "data: [DONE]"
    assert relayed(server) == before + 2 + 1


@pytest.mark.parametrize("ends", ["client", "edge"])
def test_a_stream_that_ends_in_the_middle_ends_the_model(
    server: ServerProcess, url: str, models: Path, ends: str
) -> None:
    begun, cancelled = (models / "chat" / "1" / name for name in ("begun", "cancelled"))
    for mark in (begun, cancelled):
        mark.unlink(missing_ok=True)
    body = {"model": "chat", "messages": [{"role": "user", "content": "forever"}], "stream": True}
    is_ended: Callable[[], bool] = cancelled.exists
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as stream:
        pieces = stream.iter_raw()
        next(pieces)
        assert eventually(begun.exists)
        assert not cancelled.exists()
        if ends == "edge":
            os.kill(edges_of(server)[1], signal.SIGKILL)
            assert eventually(is_ended)
            with pytest.raises(httpx.HTTPError):
                list(pieces)
    assert eventually(is_ended)


def test_an_edge_that_was_started_again_answers(server: ServerProcess, url: str) -> None:
    def is_served() -> bool:
        try:
            return chats(url) == (HELLO, HELLO)
        except (openai.APIError, anthropic.APIError):
            return False

    assert eventually(is_served)
