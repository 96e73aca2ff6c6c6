"""A process without standard streams: what it prints goes nowhere, and no socket takes their place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, os, socket, sys
from trioton.standard_streams import provide_standard_streams

provide_standard_streams()
with socket.socket() as opened, open(sys.argv[1], "w") as found:
    print("to stdout", flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    os.write(1, b"by number"), os.write(2, b"by number")
    json.dump([opened.fileno(), [os.get_inheritable(each) for each in range(3)], sys.stdin is not None], found)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ""])
def test_those_that_are_missing_are_opened(tmp_path: Path, closed: str) -> None:
    words = [sys.executable, "-c", CODE, str(tmp_path / "found")]
    ended = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *words], capture_output=True, check=True)
    socket, inheritable, has_stdin = json.loads((tmp_path / "found").read_text())
    assert (socket > 2, inheritable, has_stdin) == (True, [True] * 3, True)
    assert (b"to stdout" in ended.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert (b"to stderr" in ended.stderr) == ("2>&-" not in closed)


def test_a_command_without_an_output() -> None:
    words = [sys.executable, "-m", "trioton", "--help"]
    ended = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *words], capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")
