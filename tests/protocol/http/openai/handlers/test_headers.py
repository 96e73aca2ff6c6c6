"""Headers of all answers of the OpenAI interface: the request's id, and the limits of the model's queue."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from protocol.access.control import AccessControl
from protocol.access.restricted import HTTP_API, RestrictedApis
from protocol.core import QueueRoom
from protocol.errors import Overloaded
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.messages import LATEST_VERSION
from tests.protocol.access.changing_keys import ChangingKeys
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import ScriptedCore

CHAT = "/v1/chat/completions"


def body(**members: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}).encode()


async def send(
    method: str, path: str, content: bytes = b"", *, core: ScriptedCore | None = None, request_id: str = "", **more: Any
) -> Answer:
    settings = HttpSettings(max_input_size=200)
    headers = {"x-request-id": request_id} if request_id else {}
    return await call(HttpApp(make_services(core or ScriptedCore(), **more), settings), method, path, content, headers)


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", CHAT, body(), 200),
        ("POST", CHAT, body(stream=True), 200),
        ("GET", "/v1/models", b"", 200),
        ("GET", "/health/ready", b"", 200),
        ("POST", CHAT, b"{", 400),
        ("POST", CHAT, body(model="unknown"), 404),
        ("POST", CHAT, body(user="x" * 300), 413),
        ("GET", "/v1/nothing", b"", 404),
        ("DELETE", "/v1/models", b"", 405),
        ("POST", "/tokenize", b"{", 400),
    ],
)
async def test_every_answer_has_the_id_of_its_request(method: str, path: str, content: bytes, status: int) -> None:
    for given in ("mine", ""):
        answer = await send(method, path, content, request_id=given)
        assert answer.status == status
        found = answer.headers["x-request-id"]
        assert found == given if given else len(found) == 32


async def test_a_refused_call_has_one_too() -> None:
    access = AccessControl(RestrictedApis.parse(["inference:key=secret"], HTTP_API))
    answer = await send("POST", CHAT, body(), request_id="mine", access=access)
    assert (answer.status, answer.headers["x-request-id"]) == (401, "mine")


@pytest.mark.parametrize("given", ["a b", "é", "x" * 129])
async def test_an_id_that_no_header_can_carry_is_not_repeated(given: str) -> None:
    answer = await send("GET", "/v1/models", request_id=given)
    assert len(answer.headers["x-request-id"]) == 32


async def test_an_error_has_the_id_that_the_body_gives() -> None:
    answer = await send("POST", CHAT, body(model="unknown", request_id="in-body"), request_id="in-header")
    assert answer.headers["x-request-id"] == "in-body"


async def test_other_routes_have_one_too() -> None:
    for path in ("/v2", "/v2/nothing", "/nothing"):
        assert (await send("GET", path, request_id="mine")).headers["x-request-id"] == "mine"


@dataclass
class Bounded(ScriptedCore):
    room: QueueRoom | None = None

    def queue_room(self, name: str, version: int = LATEST_VERSION) -> QueueRoom | None:
        assert name == "m"
        return self.room


def limits(answer: Answer) -> dict[str, str]:
    prefix = "x-ratelimit-"
    return {name.removeprefix(prefix): text for name, text in answer.headers.items() if name.startswith(prefix)}


@pytest.mark.parametrize("stream", [False, True])
async def test_limits_are_those_of_the_models_queue(stream: bool) -> None:
    content = body(stream=stream)
    assert limits(await send("POST", CHAT, content, core=Bounded(room=None))) == {}
    requests = Bounded(room=QueueRoom(requests=8, waiting_requests=3))
    assert limits(await send("POST", CHAT, content, core=requests)) == {
        "limit-requests": "8",
        "remaining-requests": "5",
    }
    both = Bounded(room=QueueRoom(8, 9, 100, 40))
    assert limits(await send("POST", CHAT, content, core=both)) == {
        "limit-requests": "8",
        "remaining-requests": "0",
        "limit-tokens": "100",
        "remaining-tokens": "60",
    }


async def test_a_full_queue_says_so() -> None:
    core = Bounded(room=QueueRoom(8, 8), script=(Overloaded("8 requests wait"),))
    answer = await send("POST", CHAT, body(), core=core)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert limits(answer) == {"limit-requests": "8", "remaining-requests": "0"}


KEY = "a-key-of-enough-characters"
ALICE = f'[keys.alice]\nkey = "{KEY}"\nallow = ["all"]\nquota = "q"\n'


def with_quota(quota: str) -> AccessControl:
    return AccessControl(keys=ChangingKeys(f"[quotas.q]\n{quota}\n{ALICE}"))


@pytest.mark.parametrize("stream", [False, True])
async def test_limits_are_those_of_the_key_where_it_has_some(stream: bool) -> None:
    core = Bounded(room=QueueRoom(8, 3, 100, 40))
    app = HttpApp(
        make_services(core, access=with_quota("requests = { limit = 3, seconds = 1080 }")),
        HttpSettings(),
    )
    headers = {"authorization": f"Bearer {KEY}"}
    answers = [await call(app, "POST", CHAT, body(stream=stream), headers) for _ in range(4)]
    assert limits(answers[0]) == {
        "limit-requests": "3",
        "remaining-requests": "2",
        "reset-requests": "6m0s",
        "limit-tokens": "100",
        "remaining-tokens": "60",
    }
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert answers[3].json["error"]["code"] == "rate_limit_exceeded"
    assert answers[3].headers["retry-after"] == "360"


async def test_tokens_of_a_model_without_an_engine_are_taken_at_the_end() -> None:
    app = HttpApp(
        make_services(Bounded(), access=with_quota("tokens = { limit = 100, seconds = 86400 }")), HttpSettings()
    )
    headers = {"authorization": f"Bearer {KEY}"}
    left = []
    for stream in (False, True, False):
        answer = await call(app, "POST", CHAT, body(stream=stream), headers)
        left.append(limits(answer)["remaining-tokens"])
    assert left == ["100", "92", "84"]  # 5 of the prompt and 3 of the answer, as the model says


async def test_a_models_own_limit_is_found_when_the_body_is_read() -> None:
    access = with_quota(
        "requests = { limit = 9, seconds = 86400 }\n[quotas.q.models.m]\nrequests = { limit = 1, seconds = 86400 }"
    )
    app = HttpApp(make_services(Bounded(), access=access), HttpSettings())
    headers = {"authorization": f"Bearer {KEY}"}
    assert (await call(app, "POST", CHAT, body(), headers)).status == 200
    refused = await call(app, "POST", CHAT, body(), headers)
    assert refused.status == 429
    assert "1 requests to model 'm' in 86400 s" in refused.json["error"]["message"]
    unknown = await call(app, "POST", CHAT, body(model="unknown"), headers)
    assert unknown.status == 404
