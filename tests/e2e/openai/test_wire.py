"""The OpenAI interface byte by byte, clients that leave, load and unload, and models whose files are broken."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.e2e.openai.repository import CHATML, add_scripted
from tests.e2e.server_process import ServerProcess, eventually


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize("is_http2", [False, True])
def test_bytes_of_a_stream(base_url: str, is_http2: bool) -> None:
    with httpx.Client(base_url=base_url, http1=not is_http2, http2=is_http2) as client:
        reply = client.post("/v1/chat/completions", json=say("quote", stream=True), headers={"x-request-id": "7"})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    first, second, third, done, rest = reply.text.split("\n\n")
    created = json.loads(first.removeprefix("data: "))["created"]
    members = f'"id":"chatcmpl-7","object":"chat.completion.chunk","created":{created},"model":"chat"'
    head = f'{{{members},"choices":[{{"index":0,'
    end = '"logprobs":null,"finish_reason":'
    assert first == f'data: {head}"delta":{{"role":"assistant","content":""}},{end}null}}]}}'
    assert second == f'data: {head}"delta":{{"content":"a\\"b\\\\c\\n"}},{end}null}}]}}'
    assert third == f'data: {head}"delta":{{"content":"\\t\N{LATIN SMALL LETTER E WITH ACUTE}"}},{end}"stop"}}]}}'
    assert (done, rest) == ("data: [DONE]", "")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_model(text_server: ServerProcess, text_repository: Path, stream: bool) -> None:
    begun, cancelled = (text_repository / "chat" / "1" / name for name in ("begun", "cancelled"))
    for mark in (begun, cancelled):
        mark.unlink(missing_ok=True)
    host, port = text_server.addresses["http"].rsplit(":", 1)
    body = json.dumps(say("forever", stream=stream)).encode()
    with socket.create_connection((host, int(port))) as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert eventually(begun.exists)
        if stream:
            assert client.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
        assert not cancelled.exists()
    assert eventually(cancelled.exists)


def test_a_request_is_cancelled_by_the_id_of_its_answer(base_url: str, text_repository: Path) -> None:
    cancelled = text_repository / "chat" / "1" / "cancelled"
    cancelled.unlink(missing_ok=True)
    body = say("forever", stream=True, request_id="stop-me")
    with httpx.stream("POST", f"{base_url}/v1/chat/completions", json=body) as reply:
        lines = reply.iter_lines()
        next(lines)
        stopped = httpx.post(f"{base_url}/v2/models/chat/requests/chatcmpl-stop-me/cancel").json()
        assert stopped == {"cancelled": 1}
        *_, last = (line for line in lines if line)
    assert "error" in json.loads(last.removeprefix("data: "))
    assert eventually(cancelled.exists)


def test_tokens(base_url: str) -> None:
    made = httpx.post(f"{base_url}/tokenize", json={"model": "chat", "prompt": "say hello"}).json()
    assert (made["count"], made["max_model_len"], made["tokens"][0]) == (len(made["tokens"]), 256, 0)
    tokens = {"model": "chat", "tokens": made["tokens"]}
    assert httpx.post(f"{base_url}/detokenize", json=tokens).json() == {"prompt": "<s>say hello"}


def test_load_and_unload(base_url: str) -> None:
    def post(action: str) -> tuple[int, Any]:
        reply = httpx.post(f"{base_url}/v1/models/other/{action}")
        return reply.status_code, reply.json()

    assert post("load")[1]["detail"] == "Model 'other' is already loaded"
    assert post("unload") == (200, {"status": "success", "model": "other"})
    assert post("unload")[0] == 404
    assert httpx.get(f"{base_url}/v1/models/other").status_code == 404
    assert post("load") == (200, {"status": "success", "model": "other"})
    assert httpx.get(f"{base_url}/v1/models/other").json()["max_model_len"] == 40


def test_a_broken_tokenizer_fails_the_load_and_names_the_file(tmp_path: Path) -> None:
    add_scripted(tmp_path, "broken", CHATML, tokenizer=".")
    file = tmp_path / "broken" / "1" / "tokenizer.json"
    file.write_text('{"model": 3}')
    with ServerProcess("--exit-on-error=false", repository=tmp_path) as server:
        assert len(server.addresses) == 3
        index = httpx.post(f"http://{server.addresses['http']}/v2/repository/index").json()
    assert index[0]["state"] == "UNAVAILABLE"
    assert f"model 'broken': '{file}': not a tokenizer.json: " in index[0]["reason"]


def test_flags(text_repository: Path) -> None:
    flags = ("--openai-strict=true", "--openai-default-max-tokens=16", "--openai-lora-separator=:")
    explicit = ("--model-control-mode=explicit", "--load-model=chat")
    with ServerProcess(*flags, *explicit, repository=text_repository) as server:
        url = f"http://{server.addresses['http']}/v1"
        assert [each["id"] for each in httpx.get(f"{url}/models").json()["data"]] == ["chat", "chat:poet", "chat:law"]
        made = httpx.post(f"{url}/chat/completions", json={**say("tell me"), "model": "chat:law"}).json()
        sampling = json.loads(made["choices"][0]["message"]["content"])["sampling"]
        assert sampling == {"max_tokens": 16, "lora_name": "law"}
        refused = httpx.post(f"{url}/chat/completions", json=say("hi", what=1))
        assert (refused.status_code, refused.json()["detail"][0]["msg"]) == (422, "Extra inputs are not permitted")


def test_keys(text_repository: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.one]\nkey = "a-secret-of-thirty-two-characters"\nallow = ["inference"]\n')
    explicit = ("--model-control-mode=explicit", "--load-model=plain")
    with ServerProcess(f"--auth-keys-file={keys}", *explicit, repository=text_repository) as server:
        url = f"http://{server.addresses['http']}/v1"
        body = {**say("hi"), "model": "plain"}
        refused = httpx.post(f"{url}/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        bearer = {"authorization": "Bearer a-secret-of-thirty-two-characters"}
        assert httpx.post(f"{url}/chat/completions", json=body, headers=bearer).status_code == 200
        assert httpx.get(f"{url}/models", headers=bearer).status_code == 403


def test_a_long_name_is_cut_in_errors(text_server: ServerProcess, base_url: str) -> None:
    name = "m" * 100_000
    shown = f"'{name[:200]}…'"
    unknown = httpx.post(f"{base_url}/v1/completions", json={"model": name, "prompt": "a"}).json()
    assert unknown["error"]["message"] == f"Unknown model: {name[:200]}…"
    path = f"{base_url}/v2/models/{name[:60_000]}"
    for reply in (
        httpx.get(path),
        httpx.post(f"{path}/infer", json={"inputs": []}),
        httpx.post(f"{path}/generate", json={}),
        httpx.get(f"{path}/stats"),
        httpx.post(f"{base_url}/v2/repository/models/{name[:60_000]}/load", json={}),
        httpx.post(
            f"{path}/infer", json={"inputs": [{"name": "A", "datatype": "INT32", "shape": [1], "data": [1, 2]}]}
        ),
    ):
        assert shown in reply.json()["error"]
        assert len(reply.content) < 500
    with grpcclient.InferenceServerClient(text_server.addresses["grpc"]) as client:
        with pytest.raises(InferenceServerException, match=r"unknown model: 'm{200}…' is not found"):
            client.get_model_metadata(name[:10_000])
        with pytest.raises(InferenceServerException, match=r"failed to load 'm{200}…', failed to poll"):
            client.load_model(name[:10_000])
