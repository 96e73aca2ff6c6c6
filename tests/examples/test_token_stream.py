"""The toy generator: its model alone, and its client against a real server, where requests join each other's rounds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from tests.examples.loading import EXAMPLES, load_example, load_model
from tests.examples.test_live import run_script, settings, url
from trioton.server import open_server

token_stream = load_example("clients/token_stream")
model = load_model(EXAMPLES / "models" / "token_generator" / "1" / "model.py")


@pytest.fixture
def generating(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / "models" / token_stream.MODEL, tmp_path / "models" / token_stream.MODEL)
    return tmp_path / "models"


def test_words_follow_each_other_as_in_the_text() -> None:
    words = model.vocabulary_of("a b . a c .")
    assert words == [".", "a", "b", "c"]
    expected = np.array([[0, 1, 0, 0], [0, 0, 0.5, 0.5], [1, 0, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_allclose(model.transitions_of("a b . a c .", words), expected)


@pytest.mark.parametrize(("chance", "word"), [(0.0, 2), (0.49, 2), (0.51, 3), (0.999999, 3)])
def test_the_chance_decides_among_those_that_may_follow(chance: float, word: int) -> None:
    transitions = model.transitions_of("a b . a c .", [".", "a", "b", "c"])
    assert model.next_words(transitions, np.array([1]), np.array([chance])).tolist() == [word]


@pytest.mark.e2e
async def test_requests_join_each_others_rounds_and_words_come_one_by_one(generating: Path) -> None:
    """What a prompt becomes does not depend on its company."""
    seen: list[int] = []
    async with open_server(settings(generating)) as server:

        def ask(seed: int, *prompts: str) -> Any:
            return token_stream.generate(
                url(server, "grpc"), prompts, lambda number, text: seen.append(number), tokens=12, seed=seed
            )

        together = await trio.to_thread.run_sync(ask, 0, *token_stream.PROMPTS)
        order = list(seen)
        alone = []
        for number, prompt in enumerate(token_stream.PROMPTS):
            alone += await trio.to_thread.run_sync(ask, number, prompt)
        statistics = server.core.model_statistics(token_stream.MODEL)[0]
    assert [text.words for text in together] == [text.words for text in alone]
    assert {company for text in alone for company in text.company} == {1}
    assert max(company for text in together for company in text.company) > 1
    assert order != sorted(order), "one request's words came between another's"
    assert statistics.inference_count == 2 * len(token_stream.PROMPTS)
    assert statistics.execution_count < sum(len(text.words) for text in (*together, *alone))
    for text in together:
        assert text.words[-1] == model.END or len(text.words) == 12


@pytest.mark.e2e
async def test_the_client_runs_alone_and_says_what_failed(generating: Path, tmp_path: Path) -> None:
    client = "examples/clients/token_stream.py"
    async with open_server(settings(generating)) as server:
        several = await run_script(client, "-u", url(server, "grpc"))
        one = await run_script(client, "the model", "--tokens", "3", "-u", url(server, "grpc"))
    assert (several.returncode, several.stderr.decode()) == (0, "")
    assert "in the round" in several.stdout.decode()
    assert several.stdout.decode().splitlines()[-3].startswith("the model ")
    assert len(one.stdout.decode().split()) <= 5
    (tmp_path / "empty").mkdir()
    async with open_server(settings(tmp_path / "empty")) as server:
        failed = await run_script(client, "-u", url(server, "grpc"))
    assert failed.returncode == 1
    assert "unknown model" in failed.stderr.decode()
    assert "Traceback" not in failed.stderr.decode()
