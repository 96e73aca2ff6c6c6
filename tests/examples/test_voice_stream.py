"""Streams of sound to a sequence model whose memory the server keeps: the example, against a real server."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.examples.loading import load_example
from tests.examples.local_server import LocalServer
from tests.examples.test_live import run_script, settings, url
from trioton.server import open_server

pytestmark = pytest.mark.e2e

voice_stream = load_example("clients/voice_stream")
voice_activity = load_example("clients/voice_activity")
synthetic_speech = load_example("clients/synthetic_speech")


@pytest.fixture(scope="module")
def streaming(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of this one model, which is quickly loaded."""
    directory = tmp_path_factory.mktemp("streaming")
    shutil.copytree(repository / voice_stream.MODEL, directory / voice_stream.MODEL)
    return directory


def test_a_step_has_the_end_of_the_one_before_it() -> None:
    samples = np.arange(2000, dtype=np.float32)
    first, second = voice_stream.sound(samples, 0), voice_stream.sound(samples, 1)
    assert first.tolist() == [0.0] * 64 + list(range(512))
    assert second.tolist() == list(range(448, 1024))


async def test_callers_side_by_side_are_heard_as_if_each_were_alone(streaming: Path, server: LocalServer) -> None:
    """Over one stream, with state kept by the server: what a client finds that carries its state itself."""
    callers = voice_stream.two_callers()
    steps: list[str] = []
    async with open_server(settings(streaming)) as running:
        found = await trio.to_thread.run_sync(
            lambda: voice_stream.listen(url(running, "grpc"), callers, lambda caller, *_: steps.append(caller))
        )
    for caller, recording in callers.items():
        alone = list(voice_activity.speech_probabilities(server, recording.samples))
        assert found[caller].probabilities.tolist() == pytest.approx(alone, abs=1e-4)
        assert np.array(found[caller].segments) == pytest.approx(np.array(recording.phrases), abs=0.15)
    assert {"first", "second"} <= set(steps[:4])  # and not one after the other


async def test_the_client_runs_alone_and_says_what_failed(streaming: Path, tmp_path: Path) -> None:
    async with open_server(settings(streaming)) as running:
        script = await run_script("examples/clients/voice_stream.py", "-u", url(running, "grpc"))
    assert (script.returncode, script.stderr.decode()) == (0, "")
    out = script.stdout.decode()
    assert out.index("first speaks") < out.index("second speaks")
    assert "speech in 8." in out
    async with open_server(settings(tmp_path)) as running:
        script = await run_script("examples/clients/voice_stream.py", "-u", url(running, "grpc"))
    assert script.returncode == 1
    error = script.stderr.decode()
    assert "unknown model" in error
    assert "Traceback" not in error
