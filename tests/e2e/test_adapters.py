"""Adapters loaded and unloaded over a real server, by OpenAI's own client and as vLLM's users do it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from tests.backends.engines.models import tiny_tokenizer, write_model, write_scripted_adapter
from tests.e2e.server_process import ServerProcess, eventually

pytestmark = pytest.mark.slow

TEXT = "one two three four"
TOKENIZER = tiny_tokenizer()


def rotated(places: int) -> str:
    tokens = TOKENIZER.encode(TEXT)
    return TOKENIZER.decode([*tokens[places:], *tokens[:places]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models `able` and `plain`, which has no adapters, and folders of adapters."""
    made = tmp_path_factory.mktemp("adapters")
    write_model(made / "models" / "able", "scripted", adapters="true")
    write_model(made / "models" / "plain", "scripted")
    for places in (1, 2):
        write_scripted_adapter(made / "adapters" / f"by{places}", rotate=places)
    write_scripted_adapter(made / "adapters" / "slow", rotate=1, load_seconds=1)
    write_scripted_adapter(made / "adapters" / "broken", error="its rank is too great")
    write_scripted_adapter(made / "secret")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(f"--openai-lora-path={folder / 'adapters'}", repository=folder / "models") as started:
        started.addresses  # noqa: B018 (waits until it serves)
        yield started


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=60) as made:
        yield made
        for each in made.get("/v1/models").json()["data"]:
            if each["parent"]:
                made.post("/v1/unload_lora_adapter", json={"lora_name": each["id"], "model": each["parent"]})


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.addresses['http']}/v1", api_key="none", max_retries=0) as made:
        yield made


def load(http: httpx.Client, folder: Path, name: str, path: str, **more: object) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(folder / "adapters" / path), **more}
    return http.post("/v1/load_lora_adapter", json=body)


def text(client: openai.OpenAI, model: str) -> str:
    return client.completions.create(model=model, prompt=TEXT, max_tokens=400).choices[0].text


def test_the_model_of_a_request_is_an_adapter(http: httpx.Client, client: openai.OpenAI, folder: Path) -> None:
    answer = load(http, folder, "org/sql", "by1")
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'org/sql' added successfully.")
    listed = {each.id: each for each in client.models.list()}
    assert set(listed) == {"able", "plain", "org/sql"}
    entry = client.models.retrieve("org/sql").model_dump()
    assert (entry["parent"], entry["root"]) == ("able", str(folder / "adapters" / "by1"))
    assert (text(client, "org/sql"), text(client, "able"), text(client, "plain")) == (rotated(1), TEXT, TEXT)
    with client.completions.create(model="org/sql", prompt=TEXT, max_tokens=400, stream=True) as chunks:
        assert "".join(chunk.choices[0].text for chunk in chunks) == rotated(1)
    answer = http.post("/v1/unload_lora_adapter", json={"lora_name": "org/sql"})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'org/sql' removed successfully.")
    with pytest.raises(openai.NotFoundError, match="org/sql"):
        text(client, "org/sql")


def test_on_tritons_routes(http: httpx.Client, folder: Path) -> None:
    assert load(http, folder, "x", "by2").status_code == 200
    body = {"text_input": TEXT, "exclude_input_in_output": True, "sampling_parameters": '{"lora_name": "x"}'}
    assert http.post("/v2/models/able/generate", json=body).json()["text_output"] == rotated(2)
    body["sampling_parameters"] = '{"lora_name": "y"}'
    answer = http.post("/v2/models/able/generate", json=body)
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "model 'able': LoRA y is not supported, we currently support ['x']",
    )


def test_in_place(http: httpx.Client, client: openai.OpenAI, folder: Path) -> None:
    assert load(http, folder, "x", "by1", model="able").status_code == 200
    twice = load(http, folder, "x", "by2")
    assert twice.status_code == 400
    assert "The lora adapter 'x' has already been loaded." in twice.json()["error"]["message"]
    assert load(http, folder, "x", "by2", load_inplace=True).status_code == 200
    assert text(client, "x") == rotated(2)


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"lora_name": "x"}, 400, "Both 'lora_name' and 'lora_path' must be provided."),
        ({"lora_path": "x"}, 400, "Both 'lora_name' and 'lora_path' must be provided."),
        ({"lora_name": 7, "lora_path": "x"}, 400, "'lora_name': Expected"),
        ({"lora_name": "x", "lora_path": "{}/adapters/nowhere"}, 404, "No adapter found for"),
        ({"lora_name": "x", "lora_path": "nowhere"}, 404, "No adapter found for"),
        ({"lora_name": "x", "lora_path": "{}/secret"}, 400, "must be inside a folder that --openai-lora-path allows"),
        ({"lora_name": "x", "lora_path": "../../../secret"}, 400, "must be inside its model's folder"),
        ({"lora_name": "x", "lora_path": "{}/adapters/broken"}, 400, "LoRA adapter 'x': its rank is too great"),
        ({"lora_name": "plain", "lora_path": "{}/adapters/by1"}, 400, "'plain' is the name of a model"),
        ({"lora_name": "x", "lora_path": "{}/adapters/by1", "model": "none"}, 404, "Unknown model: none"),
        ({"lora_name": "x", "lora_path": "{}/adapters/by1", "base_model_name": "plain"}, 400, "LoRA feature is not en"),
    ],
)
def test_mistakes(http: httpx.Client, folder: Path, body: dict[str, object], status: int, sentence: str) -> None:
    asked = {name: value.format(folder) if isinstance(value, str) else value for name, value in body.items()}
    answer = http.post("/v1/load_lora_adapter", json=asked)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]["message"]
    assert {each["id"] for each in http.get("/v1/models").json()["data"]} == {"able", "plain"}


def test_mistakes_of_unloads(http: httpx.Client) -> None:
    answer = http.post("/v1/unload_lora_adapter", json={})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora_name")
    answer = http.post("/v1/unload_lora_adapter", json={"lora_name": "none"})
    assert (answer.status_code, answer.json()["detail"]) == (404, "The lora adapter 'none' cannot be found.")


def test_a_client_that_leaves_in_the_middle_of_a_load(
    http: httpx.Client, client: openai.OpenAI, server: ServerProcess, folder: Path
) -> None:
    with httpx.Client(base_url=http.base_url, timeout=0.2) as leaver, pytest.raises(httpx.ReadTimeout):
        load(leaver, folder, "x", "slow")
    assert eventually(lambda: "x" in {each.id for each in client.models.list()})
    assert text(client, "x") == rotated(1)


def test_the_same_name_by_many_at_once(http: httpx.Client, folder: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: load(http, folder, "x", "by1").status_code, range(24)))
    assert sorted(answers) == [200] + [400] * 23


def test_a_killed_worker_comes_back_with_them(
    http: httpx.Client, client: openai.OpenAI, server: ServerProcess, folder: Path
) -> None:
    assert load(http, folder, "x", "by2").status_code == 200
    for pid in server.descendants():
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: http.get("/v2/health/ready").status_code == 200)
    assert eventually(lambda: text(client, "x") == rotated(2))


def test_several_models_and_a_separator(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path / name, "scripted", adapters="true")
    flags = (f"--openai-lora-path={folder / 'adapters'}", "--openai-lora-separator=:")
    with (
        ServerProcess(*flags, repository=tmp_path) as server,
        httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=60) as http,
        openai.OpenAI(base_url=f"http://{server.addresses['http']}/v1", api_key="none") as client,
    ):
        answer = load(http, folder, "x", "by1")
        assert answer.status_code == 400
        assert "which one of 'one', 'two' is meant" in answer.json()["error"]["message"]
        assert load(http, folder, "x", "by1", model="one").status_code == 200
        assert load(http, folder, "x", "by2", model="two").status_code == 200
        assert [each.id for each in client.models.list()] == ["one", "one:x", "two", "two:x"]
        assert (text(client, "one:x"), text(client, "two:x")) == (rotated(1), rotated(2))
        assert http.post("/v1/unload_lora_adapter", json={"lora_name": "x"}).status_code == 400
        assert http.post("/v1/unload_lora_adapter", json={"lora_name": "x", "model": "two"}).status_code == 200
        assert http.post("/v1/unload_lora_adapter", json={"lora_name": "x"}).status_code == 200


def test_not_without_the_flag(folder: Path) -> None:
    with ServerProcess(repository=folder / "models") as server:
        address = f"http://{server.addresses['http']}"
        for word in ("load", "unload"):
            answer = httpx.post(f"{address}/v1/{word}_lora_adapter", json={"lora_name": "x", "lora_path": "x"})
            assert (answer.status_code, answer.json()["error"]["message"]) == (
                400,
                "Loading and unloading LoRA adapters requires --openai-lora-path=<folder>",
            )


def test_restricted_as_model_control(folder: Path) -> None:
    flags = (f"--openai-lora-path={folder / 'adapters'}", "--http-restricted-api=model-repository:admin-key=s3cret")
    with (
        ServerProcess(*flags, repository=folder / "models") as server,
        httpx.Client(base_url=f"http://{server.addresses['http']}") as http,
    ):
        assert load(http, folder, "x", "by1").status_code == 401
        http.headers["admin-key"] = "s3cret"
        assert load(http, folder, "x", "by1").status_code == 200


def test_a_model_that_was_evicted_comes_back_with_them(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path / name, "scripted", adapters="true", memory_bytes=100)
    flags = (f"--openai-lora-path={folder / 'adapters'}", "--model-memory-budget=150", "--model-control-mode=explicit")
    with (
        ServerProcess(*flags, "--load-model=one", repository=tmp_path) as server,
        httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=60) as http,
        openai.OpenAI(base_url=f"http://{server.addresses['http']}/v1", api_key="none") as client,
    ):
        assert load(http, folder, "x", "by1", model="one").status_code == 200
        assert http.post("/v2/repository/models/two/load").status_code == 200
        assert text(client, "two") == TEXT
        answer = load(http, folder, "y", "by1", model="one")
        assert answer.status_code == 503
        assert "model 'one' was unloaded for the memory budget" in answer.json()["error"]["message"]
        assert text(client, "x") == rotated(1)
        assert load(http, folder, "y", "by2", model="one").status_code == 200
        assert (text(client, "two"), text(client, "y"), text(client, "x")) == (TEXT, rotated(2), rotated(1))
