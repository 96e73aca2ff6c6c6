"""`trioton demo`: real models, real inputs, right answers; it ends by itself or at Ctrl-C."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.e2e.server_process import LOCAL

ANY_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
# It loads a dozen models, beside other tests.
DEMO_SECONDS = 180.0


def demo(*flags: str, repository: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trioton", "demo", f"--repository={repository}", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and all that it has shown; it does not outlive the test."""
    try:
        shown, _ = process.communicate(timeout=DEMO_SECONDS)
        return process.returncode, shown
    finally:
        process.kill()
        process.communicate()


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
        assert process.wait(DEMO_SECONDS) == 0, "".join(lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    shown = "".join(lines)
    assert "All answers were right" in shown
    assert "curl" in shown
    assert "/v2/docs" in shown
    assert "Traceback" not in shown


def test_the_demo_once(tmp_path: Path) -> None:
    """It ends by itself, and serves no longer than it takes."""
    code, shown = ended(demo("--once", *ANY_PORTS, repository=tmp_path))
    assert code == 0, shown
    assert "All answers were right" in shown
    assert "Serving until" not in shown
    has_engine = importlib.util.find_spec("openvino_genai") is not None
    assert ("pieces and again as a whole" in shown) == has_engine
    assert ("tiny_llama is left out" in shown) == (not has_engine)


def test_the_demo_once_with_a_port_taken(tmp_path: Path) -> None:
    """It ends by itself with 1, and says which port."""
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        code, shown = ended(demo("--once", *ANY_PORTS, f"--http-port={port}", repository=tmp_path))
    assert code == 1
    assert f"cannot listen on {LOCAL}:{port}" in shown
    assert "Traceback" not in shown
