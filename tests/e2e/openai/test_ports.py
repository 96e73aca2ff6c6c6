"""OpenAI's routes on a port of their own, and the program of Triton's OpenAI frontend, by the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.openai.repository import add_tokenizer
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

HELLO: Any = [{"role": "user", "content": "say hello"}]
TEMPLATE = "{% for message in messages %}{{ message.content }}? {% endfor %}"
SHOUT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(each, "text_input").as_numpy().reshape(-1)[0] for each in requests]
        answers = [np.array([text.upper()], dtype=object) for text in texts]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text_output", answer)]) for answer in answers]
"""
CONFIG = """
backend: "python"
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def url_of(server: ServerProcess) -> str:
    return f"http://{server.wait_for_line('Started OpenAI frontend at ([0-9.:]+)').group(1)}"


def client_of(url: str, **headers: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, default_headers=headers)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model without tokenizer, template and parser."""
    folder = tmp_path_factory.mktemp("shout")
    (folder / "shout" / "1").mkdir(parents=True)
    (folder / "shout" / "1" / "model.py").write_text(SHOUT)
    (folder / "shout" / "config.pbtxt").write_text(CONFIG)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    add_tokenizer(folder, TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def both(repository: Path, tokenizer: Path) -> Iterator[ServerProcess]:
    flags = ("--openai-port=0", "--openai-address=127.0.0.1", f"--openai-tokenizer={tokenizer}")
    with ServerProcess(*flags, repository=repository) as server:
        assert len(server.addresses) == 3
        yield server


def test_both_ports_serve_the_routes(both: ServerProcess) -> None:
    for url in (url_of(both), f"http://{both.addresses['http']}"):
        with client_of(url) as client:
            made = client.chat.completions.create(model="shout", messages=HELLO)
            assert made.choices[0].message.content == "SAY HELLO? "
            assert made.usage is not None
            assert made.usage.prompt_tokens > 0
            assert [model.id for model in client.models.list()] == ["shout"]


def test_the_own_port_has_what_the_frontend_has_and_no_more(both: ServerProcess) -> None:
    with httpx.Client(base_url=url_of(both)) as client:
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.content, len(ready.headers["x-request-id"])) == (200, b"", 32)
        page = client.get("/metrics")
        assert page.headers["content-type"] == "text/plain; charset=utf-8"
        assert 'nv_inference_request_success{model="shout"' in page.text
        for path in ("/v2", "/v2/health/ready", "/"):
            nothing = client.get(path)
            assert (nothing.status_code, nothing.json()["detail"]) == (404, "Not Found")
    http = f"http://{both.addresses['http']}"
    openai_port = int(url_of(both).rpartition(":")[2])
    assert httpx.get(f"{http}/").json()["openai"] == {"port": openai_port}


def test_the_routes_taken_off_the_http_port(repository: Path) -> None:
    with (
        ServerProcess("--openai-on-http-port=false", repository=repository) as server,
        httpx.Client(base_url=f"http://{server.addresses['http']}") as client,
    ):
        assert client.get("/v1/models").json()["error"] == "Not Found"
        assert client.get("/v2/health/ready").status_code == 200
        paths = client.get("/v2/docs/openapi.json").json()["paths"]
        assert not [path for path in paths if path.startswith("/v1")]


def test_the_program_of_tritons_frontend(repository: Path, tokenizer: Path) -> None:
    """Its command line, unchanged but for the ports."""
    words = [
        *("--model-repository", str(repository), "--tokenizer", str(tokenizer), "--host", "127.0.0.1"),
        *("--openai-port", "0", "--enable-kserve-frontends", "--kserve-http-port", "0", "--kserve-grpc-port", "0"),
        *("--tool-call-parser", "llama3", "--default-max-tokens", "16", "--lora-separator", ":"),
        *("--model-control-mode", "explicit", "--load-model", "shout"),
        *("--openai-restricted-api", "inference", "infer-key", "s1"),
        *("--openai-restricted-api", "model-repository", "repository-key", "s2"),
    ]
    with ServerProcess(command=["openai-frontend", *words]) as server:
        url = url_of(server)
        http = server.wait_for_line("Started HTTPService at ([0-9.:]+)").group(1)
        assert httpx.get(f"http://{http}/v2/models/shout/ready").status_code == 200
        assert httpx.get(f"http://{http}/v1/models").status_code == 404
        assert httpx.get(f"{url}/metrics").status_code == 200
        with client_of(url) as client, pytest.raises(openai.AuthenticationError) as refused:
            client.chat.completions.create(model="shout", messages=HELLO)
        assert refused.value.response.json()["error"] == {
            "message": "This API is restricted, expecting header 'infer-key' with valid value",
            "type": "authentication_error",
            "param": None,
            "code": "invalid_auth",
        }
        with client_of(url, **{"infer-key": "s1"}) as client:
            made = client.chat.completions.create(model="shout", messages=HELLO)
            assert made.choices[0].message.content == "SAY HELLO? "
            with pytest.raises(openai.AuthenticationError, match="repository-key"):
                client.models.list()
        with client_of(url, **{"repository-key": "s2"}) as client:
            assert [model.id for model in client.models.list()] == ["shout"]
            unloaded = httpx.post(f"{url}/v1/models/shout/unload", headers={"repository-key": "s2"})
            assert unloaded.json()["status"] == "success"
