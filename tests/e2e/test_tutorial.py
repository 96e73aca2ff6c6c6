"""docs/tutorial.md: its files are written and its commands run, one after the other, in an empty folder."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
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
# A file by the last name in code before its block, or commands, or what is only shown.
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"`(\w+\.py)`")
_SERVE, _STOP = "trioton serve models &", "kill %1"
_ADDRESS = "localhost:8000"
# What a busy machine may not keep, and what takes its time.
_IN_THE_TEST = {"p99:50ms": "p99:20s", "--secs 3": "--secs 1", "--minutes 1": "--minutes 0.3"}
_GENERATOR_LIMITED = 4


def blocks() -> Iterator[tuple[str, str]]:
    """In order: ("file", name) is followed by its text; ("command", words)."""
    end = 0
    for block in _BLOCK.finditer(PAGE):
        if block[1] == "python":
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
        self._files: dict[str, str] = {}
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
        self._files[name] = text
        (self._place / name).write_text(text.replace(_ADDRESS, self._address))

    def run(self, command: str) -> str:
        for old, new in {_ADDRESS: self._address, **_IN_THE_TEST}.items():
            command = command.replace(old, new)
        done = subprocess.run(
            command, shell=True, cwd=self._place, env=self._environment, capture_output=True, text=True, check=False
        )
        allowed = (0, _GENERATOR_LIMITED) if command.startswith("trioton perf ") else (0,)
        assert done.returncode in allowed, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, server: ServerProcess) -> None:
        self._address = server.addresses["http"]
        for name, text in self._files.items():
            self.write(name, text)


def test_the_tutorial(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    said: list[str] = []
    with ExitStack() as serving:
        for kind, text in blocks():
            if kind == "file":
                reader.write(*text.split("\n", 1))
            elif text == _SERVE:
                reader.serve(serving.enter_context(ServerProcess(repository=tmp_path / "models")))
            elif text == _STOP:
                serving.close()
            elif not text.startswith("pip install"):
                said.append(reader.run(text))
    trained, converted, _, refused, asked, measured, found, _, asked_again = said
    assert trained.startswith("trained")
    assert re.search(r"^chosen: (onnx|openvino|onnx-int8), by its rate under p99:20000ms$", converted, re.MULTILINE)
    assert "NOT PASSED, for the reasons above: mine" in refused
    assert [line.split()[0] for line in measured.splitlines()[1:4]] == ["1", "8", "32"]
    assert (tmp_path / "perf.html").is_file()
    assert re.search(r"^proposed: \S", found, re.MULTILINE)
    assert (tmp_path / "digits.analysis" / "report.html").is_file()
    for answer in (asked, asked_again):
        right, of_all = map(int, re.findall(r"(\d+) of (\d+) digits are right", answer)[0])
        assert of_all == 169
        assert right > 0.85 * of_all
