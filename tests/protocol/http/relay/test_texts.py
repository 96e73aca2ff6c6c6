"""The OpenAI and Anthropic interfaces of an edge that has a link: what it answers, and what the core's edge does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import trio

from protocol.errors import NotHere, Unavailable
from protocol.http.openai.handlers.chat import chat_completions
from protocol.http.openai.responses import handlers as responses
from protocol.http.openai.threads import LARGE_ABOVE
from protocol.http.relay.texts import needs_kept_responses
from protocol.http.settings import HttpSettings, Interface
from protocol.messages import LATEST_VERSION
from protocol.responses.background import Responses
from protocol.text.model import TextModel
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import TEMPLATE, ScriptedCore, events
from tests.protocol.http.openai.words import word_tokenizer
from tests.protocol.http.relay.conftest import Relayed, Relays

TEXT = TextModel("m", 1, chat_template=TEMPLATE, tokenizer=word_tokenizer(), context_length=99)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
MESSAGE = {**CHAT, "max_tokens": 9}
RESPONSE = {"model": "m", "input": "hello"}


@dataclass
class Linked(ScriptedCore):
    """The core as the link shows it; `is_stale`: the tokenizer of its model is not to be had."""

    is_stale: bool = False

    async def text_model(self, name: str, version: int = LATEST_VERSION) -> TextModel:
        if self.is_stale:
            raise NotHere("the tokenizer's file has changed")
        return await super().text_model(name, version)


@dataclass
class Both:
    edge: Relayed
    here: Linked
    there: ScriptedCore

    async def post(self, path: str, members: dict[str, Any], **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.edge.url) as client:
            return await client.post(path, json=members, headers=headers)

    @property
    def answered(self) -> tuple[int, int]:
        """Requests to models, by this edge and by the core's."""
        return len(self.here.requests), len(self.there.requests)


@pytest.fixture
async def both(relays: Relays, nursery: trio.Nursery) -> Both:
    return await started(relays)


async def started(relays: Relays, **more: Any) -> Both:
    here, there = Linked(texts=(TEXT,)), ScriptedCore(texts=(TEXT,), script=("x", "y"))
    services = replace(make_services(here), responses=Responses(0))
    edge = await relays(make_services(there), services, has_texts=True, **more)
    return Both(edge, here, there)


CALLS = [
    ("/v1/chat/completions", CHAT, "choices"),
    ("/v1/completions", {"model": "m", "prompt": "hello"}, "choices"),
    ("/v1/messages", MESSAGE, "content"),
    ("/v1/responses", {**RESPONSE, "store": False}, "output"),
]


@pytest.mark.parametrize(("path", "members", "field"), CALLS)
async def test_what_is_answered_here(both: Both, path: str, members: dict[str, Any], field: str) -> None:
    answer = await both.post(path, members)
    assert (answer.status_code, field in answer.json(), both.answered, both.edge.clients) == (200, True, (1, 0), [])


@pytest.mark.parametrize(
    ("path", "members"),
    [
        ("/tokenize", {"model": "m", "prompt": "hello"}),
        ("/detokenize", {"model": "m", "tokens": [1]}),
        ("/v1/messages/count_tokens", CHAT),
        ("/v1/responses/input_tokens", RESPONSE),
    ],
)
async def test_tokens_are_counted_here(both: Both, path: str, members: dict[str, Any]) -> None:
    assert (await both.post(path, members)).status_code == 200
    assert both.edge.clients == []


@pytest.mark.parametrize(
    ("path", "members"),
    [
        ("/v1/responses", RESPONSE),
        ("/v1/responses", {**RESPONSE, "background": True}),
        ("/v1/responses", {**RESPONSE, "store": False, "previous_response_id": "resp_1"}),
        ("/v1/responses/input_tokens", {**RESPONSE, "previous_response_id": "resp_1"}),
        ("/v1/batches", {}),
        ("/v1/load_lora_adapter", {}),
        ("/v1/models/m/load", {}),
        ("/sleep", {}),
    ],
)
async def test_what_the_core_keeps_or_changes_is_its_own(both: Both, path: str, members: dict[str, Any]) -> None:
    await both.post(path, members)
    assert (both.here.requests, len(both.edge.clients)) == ([], 1)


async def test_responses_of_a_core_that_keeps_none(relays: Relays) -> None:
    both = await started(relays, keeps_responses=False)
    assert (await both.post("/v1/responses", RESPONSE)).json()["store"] is False
    assert both.answered == (1, 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "members", "field"), CALLS)
async def test_a_tokenizer_that_is_not_to_be_had_here(
    both: Both, path: str, members: dict[str, Any], field: str, stream: bool
) -> None:
    """The body was read, and goes on as it was read."""
    both.here.is_stale = True
    answer = await both.post(path, {**members, "stream": stream}, **{"x-request-id": "mine"})
    assert (answer.status_code, both.answered, len(both.edge.clients)) == (200, (0, 1), 1)
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert len(answer.headers.get_list("request-id")) == (1 if path == "/v1/messages" else 0)
    assert ("text/event-stream" in answer.headers["content-type"]) is stream
    if stream and path == "/v1/chat/completions":
        assert list(events(answer.content))[-1] == "[DONE]"


async def test_errors_of_the_core_come_as_they_are(both: Both) -> None:
    both.here.is_stale = True
    both.there.script = (Unavailable("the engine is full"),)
    answer = await both.post("/v1/messages", MESSAGE, **{"x-request-id": "mine"})
    assert (answer.status_code, answer.json()["request_id"]) == (529, "mine")
    assert answer.json()["error"] == {"type": "overloaded_error", "message": "the engine is full"}
    assert answer.headers.get_list("request-id") == ["mine"]


async def test_errors_are_those_of_the_core(both: Both) -> None:
    for path, members in (
        ("/v1/chat/completions", {**CHAT, "model": "none"}),
        ("/v1/chat/completions", {"model": "m", "messages": []}),
        ("/v1/messages", {"model": "m"}),
        ("/v1/embeddings", {"model": "m", "input": "hello"}),
    ):
        headers = {"x-request-id": "1"}
        here = await both.post(path, members, **headers)
        async with httpx.AsyncClient(base_url=both.edge.core.url) as client:
            there = await client.post(path, json=members, headers=headers)
        assert (here.status_code, here.content) == (there.status_code, there.content)
    assert both.edge.clients == []


async def test_the_list_of_models(both: Both) -> None:
    async with httpx.AsyncClient(base_url=both.edge.url) as client:
        answer = await client.get("/v1/models")
        assert [each["id"] for each in answer.json()["data"]] == ["m"]
        assert both.edge.clients == []
        assert (await client.get("/v1/models/m")).json()["id"] == "m"
        assert len(both.edge.clients) == 1


async def test_without_texts_all_of_it_is_relayed(relays: Relays) -> None:
    here, there = Linked(texts=(TEXT,)), ScriptedCore(texts=(TEXT,))
    edge = await relays(make_services(there), make_services(here))
    both = Both(edge, here, there)
    assert (await both.post("/v1/chat/completions", CHAT)).status_code == 200
    assert both.answered == (0, 1)


async def test_a_port_of_its_own(relays: Relays) -> None:
    both = await started(relays, settings=HttpSettings(interface=Interface.OPENAI))
    assert (await both.post("/v1/chat/completions", CHAT)).status_code == 200
    await both.post("/v2/models/echo/infer", {})
    assert (both.answered, len(both.edge.clients)) == ((1, 0), 1)


def test_whose_responses_are_kept() -> None:
    create, count = responses.create, responses.input_tokens
    for handler, body, is_kept in (
        (create, b"{}", True),
        (create, b'{"store": null}', True),
        (create, b'{"store": false}', False),
        (create, b'{"store": false, "background": true}', True),
        (create, b'{"store": false, "previous_response_id": "a"}', True),
        (create, b"{", False),  # its handler says what is wrong
        (create, b'{"store": false}' + b" " * LARGE_ABOVE, True),
        (count, b"{}", False),
        (count, b'{"previous_response_id": "a"}', True),
        (chat_completions, b"{}", False),
    ):
        assert needs_kept_responses(handler, body) is is_kept
