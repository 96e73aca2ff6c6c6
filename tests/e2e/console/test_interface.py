"""The console's interface of a real server process, where a process has to die."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.console.sampler import MOST_VIEWERS
from tests.e2e.console.repository import build
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually
from tests.e2e.test_slow_readers import resident

pytestmark = pytest.mark.slow


def test_a_restart_is_counted_and_its_reason_is_shown(tmp_path: Path) -> None:
    build(tmp_path / "models")
    flags = ("--model-control-mode=explicit", "--load-model=texts", "--console")
    with ServerProcess(*flags, repository=tmp_path / "models") as server:
        address = f"http://{server.addresses['http']}/v2/console/models/texts"

        def instance() -> dict[str, Any]:
            (found,) = httpx.get(address).json()["versions"][0]["instances"]
            return dict(found)

        assert (instance()["state"], instance()["restarts"], instance()["last_error"]) == ("ready", 0, "")
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        assert eventually(lambda: (instance()["restarts"], instance()["state"]) == (1, "ready"))
        assert "SIGKILL" in instance()["last_error"]


def test_viewers_that_do_not_read_make_room_and_take_no_memory(tmp_path: Path) -> None:
    """More of them than there may be viewers: who looks then sees everything, and the first ones have left."""
    build(tmp_path / "models")
    flags = ("--model-control-mode=explicit", "--load-model=add_sub", "--console")
    with ServerProcess(*flags, repository=tmp_path / "models") as server, ExitStack() as stack:
        host, _, port = server.addresses["http"].rpartition(":")

        def look() -> socket.socket:
            viewer = stack.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS))
            viewer.sendall(f"GET /v2/console/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            return viewer

        first = look()
        assert first.recv(12) == b"HTTP/1.1 200"
        before = resident(server)
        deaf = [look() for _ in range(MOST_VIEWERS + 100)]
        last = look()
        assert last.recv(12) == b"HTTP/1.1 200"
        unread = b""
        while not unread.endswith(b"0\r\n\r\n"):  # the end of its stream
            unread += first.recv(1 << 16)
        assert b"event: snapshot\ndata: {" in unread
        assert httpx.get(f"http://{host}:{port}/v2/console/snapshot").json()["server"]["viewers"] <= MOST_VIEWERS
        assert resident(server) - before < 100_000 * len(deaf)
