"""The server and the senders that are started for a measurement end with `trioton perf`, however that ends."""

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


def test_ctrl_c_of_a_terminal_ends_perf_and_its_senders_without_a_word(tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    words = [str(tmp_path / "models"), "--model=add", "--concurrency=2", "--senders=2", f"--secs={SECONDS}"]
    flag = "--server-flag=--backend-config=python,allow-in-process=true"
    command = [sys.executable, "-m", "trioton", "perf", *words, flag]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE) as perf:
        try:
            serving(perf)
            while "sender_process" not in commands_below(perf.pid):
                assert perf.poll() is None
                time.sleep(0.02)
            os.killpg(perf.pid, signal.SIGINT)
            _, errors = perf.communicate(timeout=SECONDS)
        finally:
            perf.kill()
    assert perf.returncode == 130
    assert b"Traceback" not in errors


def commands_below(pid: int) -> str:
    """Of a process's children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [Path(f"/proc/{child}/cmdline") for child in children]
    return "\n".join(each.read_text() for each in found if each.exists())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_its_server_and_senders_end_with_perf(tmp_path: Path, number: signal.Signals) -> None:
    write_models(tmp_path / "models")
    words = [
        str(tmp_path / "models"),
        "--model=add",
        "--concurrency=2",
        "--senders=2",
        f"--secs={SECONDS}",
        "--precision=0.0001",
        "--server-flag=--backend-config=python,allow-in-process=true",
    ]
    with subprocess.Popen([sys.executable, "-m", "trioton", "perf", *words], start_new_session=True) as perf:
        try:
            serving(perf)
            while commands_below(perf.pid).count("sender_process") < 2:
                assert perf.poll() is None
                time.sleep(0.02)
            children = Path(f"/proc/{perf.pid}/task/{perf.pid}/children").read_text().split()
            processes = {int(child): os.pidfd_open(int(child)) for child in children}
            os.kill(perf.pid, number)
            left = []
            for pid, process in processes.items():
                if not select.select([process], [], [], SECONDS / 2)[0]:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    left.append(pid)
                os.close(process)
        finally:
            perf.kill()
    assert len(processes) == 3
    assert not left
