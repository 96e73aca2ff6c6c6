"""Models put to sleep and woken over a real server, as vLLM's users do it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.backends.engines.models import write_model
from tests.e2e.server_process import ServerProcess, eventually

pytestmark = pytest.mark.slow

TEXT = "one two three four"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("sleep")
    write_model(repository / "m", "scripted")
    with ServerProcess("--openai-sleep-mode=true", repository=repository) as started:
        started.addresses  # noqa: B018 (waits until it serves)
        yield started


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=60) as made:
        yield made
        made.post("/wake_up")


def of(server: ServerProcess, retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{server.addresses['http']}/v1", api_key="none", max_retries=retries)


def text(client: openai.OpenAI, model: str = "m") -> str:
    return client.completions.create(model=model, prompt=TEXT, max_tokens=400).choices[0].text


@pytest.mark.parametrize("query", ["", "?level=1", "?level=2&model=m"])
def test_a_model_sleeps_and_wakes(server: ServerProcess, http: httpx.Client, query: str) -> None:
    with of(server) as client:
        before = len(server.descendants())
        assert http.get("/is_sleeping").json() == {"is_sleeping": False}
        answer = http.post(f"/sleep{query}")
        assert (answer.status_code, answer.content) == (200, b"")
        assert http.get("/is_sleeping?model=m").json() == {"is_sleeping": True}
        assert eventually(lambda: len(server.descendants()) < before)
        assert http.get("/v2/models/m/ready").status_code == 400
        assert http.get("/health").status_code == http.get("/v2/health/ready").status_code == 200
        with pytest.raises(openai.InternalServerError, match="model 'm' is asleep") as caught:
            text(client)
        assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "1")
        with pytest.raises(openai.APIError, match="model 'm' is asleep"):
            list(client.completions.create(model="m", prompt=TEXT, stream=True))
        assert http.post("/wake_up?tags=weights").status_code == 200
        assert http.get("/is_sleeping").json() == {"is_sleeping": False}
        assert http.get("/v2/models/m/ready").status_code == 200
        assert text(client) == TEXT


def test_a_client_that_tries_again_is_served_when_it_wakes_up(server: ServerProcess, http: httpx.Client) -> None:
    assert http.post("/sleep").status_code == 200
    with of(server, retries=5) as client, httpx.Client(base_url=http.base_url, timeout=0.01) as leaver:
        with pytest.raises(httpx.ReadTimeout):
            leaver.post("/wake_up")
        assert text(client) == TEXT


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/sleep?level=3", 400, "'level': expected 1 or 2, got '3'"),
        ("/sleep?level=x", 400, "'level': expected 1 or 2"),
        ("/sleep?model=none", 404, "Unknown model: none"),
        ("/wake_up?model=none", 404, "Unknown model: none"),
        ("/sleep?" + "&".join("a=1" for _ in range(99)), 400, "the query has more than 32 fields"),
    ],
)
def test_mistakes(http: httpx.Client, path: str, status: int, sentence: str) -> None:
    answer = http.post(path)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]["message"]


def test_prefixes_are_forgotten(http: httpx.Client) -> None:
    assert http.post("/reset_prefix_cache").status_code == 200


def test_several_models(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path / name, "scripted")
    flags = ("--openai-sleep-mode=true", "--http-restricted-api=model-repository:admin-key=s3cret")
    with (
        ServerProcess(*flags, repository=tmp_path) as server,
        httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=60) as http,
        of(server) as client,
    ):
        assert http.post("/sleep?model=one").status_code == 401
        http.headers["admin-key"] = "s3cret"
        answer = http.post("/sleep")
        assert answer.status_code == 400
        assert "which one of 'one', 'two' is meant" in answer.json()["error"]["message"]
        assert http.post("/sleep?model=one").status_code == 200
        assert [http.get(f"/is_sleeping?model={name}").json()["is_sleeping"] for name in ("one", "two")] == [
            True,
            False,
        ]
        assert text(client, "two") == TEXT
        assert http.post("/wake_up?model=one").status_code == 200
        assert text(client, "one") == TEXT


def test_not_without_the_flag(tmp_path: Path) -> None:
    write_model(tmp_path / "m", "scripted")
    with ServerProcess(repository=tmp_path) as server:
        address = f"http://{server.addresses['http']}"
        for path in ("sleep", "wake_up", "reset_prefix_cache"):
            answer = httpx.post(f"{address}/{path}")
            assert (answer.status_code, answer.json()["error"]["message"]) == (
                400,
                "Sleeping, waking and resetting caches requires --openai-sleep-mode=true",
            )
        assert httpx.get(f"{address}/is_sleeping").json() == {"is_sleeping": False}
