"""A decoupled model that writes word by word: alone, behind a server, and left by its reader."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

from protocol.errors import InvalidArgument
from tests.examples.loading import EXAMPLES, load_example
from tests.examples.test_live import run_script, settings, url
from trioton.server import open_server
from trioton.testing import Model, serve_model

decoupled_tokens = load_example("clients/decoupled_tokens")

FOLDER = EXAMPLES / "models" / "decoupled_tokens"
AT_ONCE = {"parameters": {"tokens_per_second": {"string_value": "0"}}}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with serve_model(FOLDER, config=AT_ONCE) as served:
        yield served


def written(model: Model, prompt: str, **more: list[int]) -> list[str]:
    return [each["TOKEN"].item().decode() for each in model.stream({"PROMPT": [prompt], **more})]


def test_so_many_words_in_their_order(model: Model) -> None:
    answers = model.stream({"PROMPT": ["A class"], "MAX_TOKENS": [7]})
    assert [each["INDEX"].item() for each in answers] == list(range(7))
    assert all(each["TOKEN"].item() for each in answers)
    assert len(written(model, "")) == 20


def test_a_seed_decides_the_words(model: Model) -> None:
    assert written(model, "A class", SEED=[1]) == written(model, "A class", SEED=[1])
    assert written(model, "A class", SEED=[1]) != written(model, "A class", SEED=[2])


def test_the_words_follow_the_prompt(model: Model) -> None:
    """Also where nothing is known to follow it."""
    assert written(model, "class definition", MAX_TOKENS=[1]) != written(model, "in the", MAX_TOKENS=[1])
    assert len(written(model, "no such prompt was ever written", MAX_TOKENS=[3])) == 3


def test_a_number_of_words_that_cannot_be(model: Model) -> None:
    with pytest.raises(InvalidArgument, match="MAX_TOKENS must be from 1 to 1000, got 0"):
        model.stream({"PROMPT": ["x"], "MAX_TOKENS": [0]})


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokens")
    shutil.copytree(FOLDER, directory / "decoupled_tokens", ignore=shutil.ignore_patterns("__pycache__"))
    return directory


@pytest.mark.e2e
async def test_over_grpc_and_over_http(repository: Path) -> None:
    """The client's words are those of a stream of events; each of them comes in an event of its own."""
    async with open_server(settings(repository)) as server:
        script = await run_script(
            "examples/clients/decoupled_tokens.py", "--prompt", "A class", "--tokens", "5", "-u", url(server, "grpc")
        )
        assert (script.returncode, script.stderr.decode()) == (0, "")
        body = {"PROMPT": "A class", "MAX_TOKENS": 5}
        async with (
            httpx.AsyncClient(base_url=f"http://{url(server, 'http')}") as client,
            client.stream("POST", "/v2/models/decoupled_tokens/generate_stream", json=body) as response,
        ):
            assert response.status_code == 200
            lines = [line async for line in response.aiter_lines()]
    events = [json.loads(line.removeprefix("data: "))["TOKEN"] for line in lines if line.startswith("data: ")]
    assert len(events) == 5
    assert script.stdout.decode().strip() == " ".join(["A class", *events])


@pytest.mark.e2e
async def test_a_reader_who_leaves(repository: Path, tmp_path: Path) -> None:
    """A thousand words take longer than a server waits at its end: the model stops when nobody reads on."""
    folder = tmp_path / "decoupled_tokens"
    shutil.copytree(repository / "decoupled_tokens", folder)
    config = (folder / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text(config.replace('"30"', '"4"'))
    async with open_server(settings(tmp_path)) as server:

        def read_two() -> list[str]:
            reading = decoupled_tokens.words(url(server, "grpc"), "A class", 1000)
            first = [next(reading), next(reading)]
            reading.close()
            return first

        assert len(await trio.to_thread.run_sync(read_two)) == 2


@pytest.mark.e2e
async def test_the_client_says_what_failed(tmp_path: Path) -> None:
    async with open_server(settings(tmp_path)) as server:
        script = await run_script("examples/clients/decoupled_tokens.py", "-u", url(server, "grpc"))
    assert script.returncode == 1
    assert "unknown model" in script.stderr.decode()
