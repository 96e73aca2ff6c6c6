"""The server that is started for a measurement ends with `trioton perf`, however that ends."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.trioton.perf.repository import write_models

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

SECONDS = 60


def serving(perf: subprocess.Popen[bytes]) -> int:
    """The process identifier of the server that perf has started, once it is ready."""
    children = Path(f"/proc/{perf.pid}/task/{perf.pid}/children")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert perf.poll() is None, "perf has ended"
        for child in map(int, children.read_text().split()):
            command = Path(f"/proc/{child}/cmdline").read_text()
            if port := re.search(r"--http-port=(\d+)", command):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/v2/health/ready", timeout=SECONDS).close()
                    return child
        time.sleep(0.05)
    raise AssertionError("no server was started")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_perf(tmp_path: Path, number: signal.Signals) -> None:
    write_models(tmp_path / "models")
    words = [
        str(tmp_path / "models"),
        "--model=add",
        "--concurrency=1",
        f"--secs={SECONDS}",
        "--precision=0.0001",
        "--server-flag=--backend-config=python,allow-in-process=true",
    ]
    with subprocess.Popen([sys.executable, "-m", "trioton", "perf", *words], start_new_session=True) as perf:
        try:
            pid = serving(perf)
            server = os.pidfd_open(pid)
            os.kill(perf.pid, number)
            has_ended = bool(select.select([server], [], [], SECONDS / 2)[0])
            if not has_ended:
                signal.pidfd_send_signal(server, signal.SIGKILL)
            os.close(server)
            assert has_ended, "the server survives"
        finally:
            perf.kill()
