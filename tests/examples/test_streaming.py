"""What the examples' clients of streams share."""

from __future__ import annotations

import gc
import os
import socket
import traceback
from types import FrameType

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.examples.loading import load_example

streaming = load_example("clients/streaming")


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    return f"{host}:{port}"


def test_a_stream_that_failed_is_not_left_to_the_interpreters_exit(
    monkeypatch: pytest.MonkeyPatch, nobody: str
) -> None:
    """It is collected, and the error, which says what has failed, does not hold it."""
    collected: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(None))

    def fail() -> None:
        with streaming.Stream(nobody) as stream:
            assert not collected
            stream.send("any", {"IN": np.zeros(1, np.float32)})
            stream.receive()

    with pytest.raises(InferenceServerException, match="failed to connect") as raised:
        fail()
    assert collected
    assert not [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__) if is_of_client(frame)]
    assert raised.value.__context__ is None


def is_of_client(frame: FrameType) -> bool:
    return f"{os.sep}tritonclient{os.sep}" in frame.f_code.co_filename


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PATIENCE", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with streaming.Stream(f"{host}:{port}") as stream:
            stream.send("any", {"IN": np.zeros(1, np.float32)})
            assert not stream.has_answers
            with pytest.raises(InferenceServerException, match=r"no answer came for 0\.01 seconds"):
                stream.receive()
