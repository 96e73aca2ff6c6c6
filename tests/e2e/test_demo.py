"""`trioton demo`: real models, real inputs, right answers; it ends by itself or at Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.e2e.server_process import LOCAL, TIMEOUT_SECONDS

ANY_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


def demo(*flags: str, repository: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trioton", "demo", f"--repository={repository}", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_the_demo_is_right_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    """The exit code is that of the answers."""
    process = demo(*ANY_PORTS, repository=tmp_path)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if "Serving until Ctrl-C" in line:
                os.killpg(process.pid, signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 0, "".join(lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    shown = "".join(lines)
    assert "All answers were right" in shown
    assert "curl" in shown
    assert "Traceback" not in shown


def test_the_demo_once(tmp_path: Path) -> None:
    """It ends by itself, and serves no longer than it takes."""
    process = demo("--once", *ANY_PORTS, repository=tmp_path)
    shown, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, shown
    assert "All answers were right" in shown
    assert "Serving until" not in shown


def test_the_demo_once_with_a_port_taken(tmp_path: Path) -> None:
    """It ends by itself with 1, and says which port."""
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        process = demo("--once", *ANY_PORTS, f"--http-port={port}", repository=tmp_path)
        shown, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1
    assert f"cannot listen on {LOCAL}:{port}" in shown
    assert "Traceback" not in shown
