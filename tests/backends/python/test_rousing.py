"""The first bytes of an answer, which go ahead to wake a server that sleeps."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
import trio

from backends.interface import BatchResult
from backends.python.wire import FrameReader
from backends.python.worker.trioton_worker.connection import Connection
from backends.python.worker.trioton_worker.frames import DONE, LOG, MAGIC, pack
from tests.backends.python.models import backend, executing, infer, output, request, running

ANSWER = pack(DONE, b"{}", body_size=3) + b"abc"


@pytest.fixture
def ends() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def test_the_first_bytes_of_a_frame_go_ahead_once(ends: tuple[socket.socket, socket.socket]) -> None:
    with ends[0] as server, ends[1] as control:
        connection = Connection(control)
        for _ in range(2):
            connection.rouse()
            connection.rouse()
            assert server.recv(100) == MAGIC
            connection.send_frame(ANSWER)
            assert server.recv(1000) == ANSWER[len(MAGIC) :]
        connection.rouse()
        connection.send_from_anywhere(LOG, {})
        sending = threading.Thread(target=connection.send, args=(DONE, {"x": 1}, (), b"", [bytes(500_000)], 500_000))
        sending.start()  # more than the socket holds
        received = bytearray()
        while len(received) < 500_000:
            received += server.recv(1 << 20)
        sending.join()
    reader = FrameReader()
    first = reader.next_frame(bytes(received))
    second = reader.next_frame()
    assert first is not None
    assert second is not None
    assert (first.kind, second.kind, bytes(second.head), len(second.body)) == (LOG, DONE, b'{"x":1}', 500_000)
    assert reader.next_frame() is None


def test_a_server_that_does_not_read_is_not_waited_for(ends: tuple[socket.socket, socket.socket]) -> None:
    with ends[0] as server, ends[1] as control:
        connection = Connection(control)
        written = 0
        while True:
            try:
                written += control.send(bytes(1000), socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
        connection.rouse()
        while written:
            written -= len(server.recv(1 << 20))
        connection.send_frame(ANSWER)
        assert server.recv(1000) == ANSWER


def test_a_server_that_is_gone_is_not_roused(ends: tuple[socket.socket, socket.socket]) -> None:
    with ends[1] as control:
        connection = Connection(control)
        ends[0].close()
        connection.rouse()
        with pytest.raises(OSError, match="Broken pipe"):
            connection.send_frame(ANSWER)


def test_a_process_that_the_model_has_forked_rouses_nobody(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ends[0] as server, ends[1] as control:
        connection = Connection(control)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        connection.rouse()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.recv(100)


@pytest.mark.parametrize(
    ("isolation", "expected"), [("process", [1, 0, 0, 1]), ("threads", [1, 0, 0, 1]), ("in_process", [0, 0, 0, 0])]
)
async def test_it_is_done_where_nothing_has_waited_for_the_worker(
    tmp_path: Path, isolation: str, expected: list[int]
) -> None:
    """A batch that is begun when the one before it has ended says that the server has work to do."""
    model = executing("return [answer(np.array([[r._batch.wants_rousing]], np.float32)) for r in requests]")
    found: list[float] = []
    ended = trio.Event()
    async with running(backend(tmp_path, model, isolation=isolation)) as instance:

        def done(result: BatchResult | Exception) -> None:
            assert isinstance(result, BatchResult)
            [response] = result.responses
            found.append(output(response).item())
            if len(found) == 3:
                ended.set()
            elif len(found) < 3:
                assert instance.begin([request()], done)

        assert instance.begin([request()], done)
        await ended.wait()
        [answer] = await infer(instance, request())
        found.append(output(answer).item())
    assert found == expected
