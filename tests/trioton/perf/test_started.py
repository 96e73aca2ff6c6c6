"""The server that is started for a measurement ends with `trioton perf`, however that ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trioton.perf.repository import write_models

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

SECONDS = 60


def server_of(perf: subprocess.Popen[bytes]) -> int:
    """The process identifier of the server, once perf has started it."""
    children = Path(f"/proc/{perf.pid}/task/{perf.pid}/children")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert perf.poll() is None, "perf has ended"
        for child in map(int, children.read_text().split()):
            if b"\0-m\0trioton\0serve\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        time.sleep(0.05)
    raise AssertionError("no server was started")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_perf(tmp_path: Path, number: signal.Signals) -> None:
    write_models(tmp_path / "models")
    words = [str(tmp_path / "models"), "--model=add", "--concurrency=1", f"--secs={SECONDS}", "--precision=0.0001"]
    with subprocess.Popen([sys.executable, "-m", "trioton", "perf", *words], start_new_session=True) as perf:
        try:
            server = os.pidfd_open(server_of(perf))
            os.kill(perf.pid, number)
            assert select.select([server], [], [], SECONDS)[0], "the server survives"
            os.close(server)
        finally:
            perf.kill()
