"""`/v1/models`, `/tokenize`, `/detokenize`, `/health` and their like, through the application."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.access.control import AccessControl
from protocol.access.restricted import HTTP_API, RestrictedApis
from protocol.errors import Unavailable
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.text.model import TextModel
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import TEMPLATE, ScriptedCore
from tests.protocol.http.openai.words import word_tokenizer


async def ask(core: ScriptedCore, method: str, path: str, body: Any = None, **services: Any) -> Answer:
    content = b"" if body is None else json.dumps(body).encode()
    return await call(HttpApp(make_services(core, **services), HttpSettings()), method, path, content)


async def test_models_and_their_adapters() -> None:
    listed = (await ask(ScriptedCore(), "GET", "/v1/models")).json
    assert listed["object"] == "list"
    assert [(each["id"], each["parent"], each["root"]) for each in listed["data"]] == [
        ("m", None, "m"),
        ("poet", "m", "/p"),
    ]
    assert (await ask(ScriptedCore(), "GET", "/v1/models/poet")).json == listed["data"][1]
    answer = await ask(ScriptedCore(), "GET", "/v1/models/nope")
    assert (answer.status, answer.json["detail"]) == (404, "Unknown model: nope")


async def test_load_and_unload() -> None:
    core = ScriptedCore()
    answer = await ask(core, "POST", "/v1/models/echo/load")
    assert (answer.status, answer.json["detail"]) == (400, "Model 'echo' is already loaded")
    assert (await ask(core, "POST", "/v1/models/wait/load")).json == {"status": "success", "model": "wait"}
    assert (await ask(core, "POST", "/v1/models/echo/unload")).json == {"status": "success", "model": "echo"}
    assert (await ask(core, "POST", "/v1/models/nope/unload")).status == 404
    assert [each[:2] for each in core.calls] == [("load", "wait"), ("unload", "echo")]


@pytest.mark.parametrize(("path", "name"), [("load", "wait"), ("unload", "echo")])
async def test_load_and_unload_outside_explicit_mode(path: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: ScriptedCore, name: str) -> None:
        raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    monkeypatch.setattr(ScriptedCore, f"{path}_model", refuse)
    answer = await ask(ScriptedCore(), "POST", f"/v1/models/{name}/{path}")
    assert answer.status == 400
    assert answer.json["detail"] == "Model load/unload requires --model-control-mode=explicit"


WORDS = TextModel("m", 1, tokenizer=word_tokenizer(), chat_template=TEMPLATE, context_length=9)


async def test_tokenize() -> None:
    core = ScriptedCore(texts=(WORDS,))
    whole = (
        await ask(core, "POST", "/tokenize", {"model": "m", "prompt": "hello world", "return_token_strs": True})
    ).json
    assert (whole["count"], whole["max_model_len"], whole["token_strs"]) == (2, 9, ["hello", " world"])
    chat = {"messages": [{"role": "user", "content": "hello world"}]}
    made = (await ask(core, "POST", "/tokenize", chat)).json
    assert (made["tokens"], made["token_strs"]) == (whole["tokens"], None)
    assert (await ask(core, "POST", "/detokenize", {"tokens": whole["tokens"]})).json == {"prompt": "hello world"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user"}]}, 400),
        ("/tokenize", {"model": "nope", "prompt": "a"}, 404),
        ("/detokenize", {}, 400),
        ("/detokenize", {"tokens": ["a"]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [0, 10**9]}, 400),
        ("/detokenize", {"tokens": [1 << 40]}, 400),
    ],
)
async def test_tokens_that_are_none(path: str, body: Any, status: int) -> None:
    answer = await ask(ScriptedCore(texts=(WORDS,)), "POST", path, body)
    assert (answer.status, list(answer.json)) == (status, ["error", "detail", "request_id"])


async def test_a_model_without_a_tokenizer() -> None:
    answer = await ask(ScriptedCore(), "POST", "/tokenize", {"prompt": "a"})
    assert (answer.status, answer.json["detail"]) == (400, "model 'm' has no tokenizer")


async def test_health() -> None:
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/health/ready")):
        answer = await ask(ScriptedCore(), method, path)
        assert (answer.status, answer.body) == (200, b"")
    assert (await ask(ScriptedCore(), "GET", "/version")).json == {"version": "0.1"}


@pytest.mark.parametrize("state", [{"ready": False}, {"exiting": True}])
async def test_a_server_that_is_not_ready(state: dict[str, Any]) -> None:
    assert (await ask(ScriptedCore(**state), "GET", "/health")).status == 503
    answer = await ask(ScriptedCore(**state), "GET", "/health/ready")
    assert answer.status == 400
    assert answer.json["detail"] == "Attached inference engine is not ready for inference requests."


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/v1/nothing", 404), ("GET", "/v1/completions", 405), ("DELETE", "/v1/models/m", 405)],
)
async def test_errors_of_paths_are_openais(method: str, path: str, status: int) -> None:
    answer = await ask(ScriptedCore(), method, path)
    assert (answer.status, list(answer.json)) == (status, ["error", "detail", "request_id"])
    assert (await ask(ScriptedCore(), method, "/v2/nothing")).error == "Not Found"


async def test_restrictions_hold_and_are_told_in_openais_form() -> None:
    access = AccessControl(RestrictedApis.parse(["inference:key=secret"], HTTP_API))
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"):
        answer = await ask(ScriptedCore(), "POST", path, {"model": "m"}, access=access)
        assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_auth")
    assert (await ask(ScriptedCore(), "GET", "/v1/models", access=access)).status == 200


ABLE = TextModel("m", 1, adapters={"poet": "/p"}, takes_adapters=True)


async def test_the_model_of_an_adapter() -> None:
    """The one that is named, has it, or is the only one that takes any."""
    other = TextModel("other", 1, takes_adapters=True)
    load = {"lora_name": "x", "lora_path": "/x"}
    core = ScriptedCore(texts=(ABLE, TextModel("plain", 1)))
    assert (await ask(core, "POST", "/v1/load_lora_adapter", load)).status == 200
    assert (await ask(core, "POST", "/v1/load_lora_adapter", {**load, "load_inplace": True})).status == 200
    core.texts = (ABLE, other)
    assert (await ask(core, "POST", "/v1/unload_lora_adapter", {"lora_name": "poet"})).status == 200
    assert (await ask(core, "POST", "/v1/load_lora_adapter", {**load, "model": "other"})).status == 200
    assert core.calls == [
        ("load adapter", "m", "x", "/x", False),
        ("load adapter", "m", "x", "/x", True),
        ("unload adapter", "m", "poet"),
        ("load adapter", "other", "x", "/x", False),
    ]
    answer = await ask(core, "POST", "/v1/load_lora_adapter", load)
    assert (answer.status, answer.json["error"]["param"]) == (400, "model")
    answer = await ask(core, "POST", "/v1/load_lora_adapter", {**load, "model": "other", "lora_name": "poet"})
    assert (answer.status, answer.json["detail"]) == (400, "'poet' is an adapter of model 'm'")
    core.texts = (TextModel("plain", 1),)
    answer = await ask(core, "POST", "/v1/load_lora_adapter", load)
    assert (answer.status, answer.json["detail"]) == (
        400,
        "no model has LoRA adapters that can be changed while it is loaded",
    )
