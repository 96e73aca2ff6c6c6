"""docs/tutorial.md: its files are written and its commands run, one after the other, in an empty folder."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "onnxscript", "openvino", "sklearn")),
        reason="needs torch, onnxscript, openvino and scikit-learn",
    ),
]

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
# A file by the last name in code before its block, or commands.
_BLOCK = re.compile(r"^```(python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"`(\w+\.py)`")
_SERVE = "trioton serve models &"
_ADDRESS = "localhost:8000"
_BOUND = "p99:50ms"  # which a busy machine may not keep


def blocks() -> Iterator[tuple[str, str]]:
    """In order: ("file", name) is followed by its text; ("command", words)."""
    end = 0
    for block in _BLOCK.finditer(PAGE):
        if block[1]:
            around = PAGE[end : block.start()] + PAGE[block.end() : block.end() + 40]
            yield "file", f"{_NAME.findall(around)[0]}\n{block[2]}"
        else:
            for line in block[2].splitlines():
                if line.startswith("$ "):
                    yield "command", line.removeprefix("$ ")
        end = block.end()


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._address = _ADDRESS
        binaries = place / "bin"
        binaries.mkdir()
        for name, words in {"python": "", "trioton": "-m trioton"}.items():
            script = binaries / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            script.chmod(0o755)
        root = str(Path(__file__).parents[2])
        self._environment = {
            **os.environ,
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def write(self, name: str, text: str) -> None:
        (self._place / name).write_text(text.replace(_ADDRESS, self._address))

    def run(self, command: str) -> str:
        command = command.replace(_ADDRESS, self._address).replace(_BOUND, "p99:20s")
        done = subprocess.run(
            command, shell=True, cwd=self._place, env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, server: ServerProcess) -> None:
        self._address = server.addresses["http"]


def test_the_tutorial(tmp_path: Path) -> None:
    steps = list(blocks())
    serving = steps.index(("command", _SERVE))
    reader = Reader(tmp_path)
    said: list[str] = []

    def follow(kind: str, text: str) -> None:
        if kind == "file":
            reader.write(*text.split("\n", 1))
        elif not text.startswith("pip install"):
            said.append(reader.run(text))

    for kind, text in steps[:serving]:
        follow(kind, text)
    trained, converted, _, refused = said
    assert trained.startswith("trained")
    assert re.search(r"^chosen: (onnx|openvino|onnx-int8), by its rate under p99:20000ms$", converted, re.MULTILINE)
    assert "NOT PASSED, for the reasons above: mine" in refused
    with ServerProcess(repository=tmp_path / "models") as server:
        reader.serve(server)
        for kind, text in steps[serving + 1 :]:
            follow(kind, text)
    right, of_all = map(int, re.findall(r"(\d+) of (\d+) digits are right", said[4])[0])
    assert of_all == 169
    assert right > 0.85 * of_all
