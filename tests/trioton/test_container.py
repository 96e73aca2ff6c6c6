"""A container's entry point: what runs for which arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trioton.container import words_of


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tritonserver", "--model-store=/mnt/models"], ["tritonserver", "--model-store=/mnt/models"]),
        (["trioton", "doctor", "/models"], ["trioton", "doctor", "/models"]),
        (["serve"], ["serve"]),
        (["--model-repository=/models"], ["tritonserver", "--model-repository=/models"]),
        (["/bin/sh", "-c", "true"], ["/bin/sh", "-c", "true"]),
        ([], ["tritonserver", "--help"]),
    ],
)
def test_programs_and_flags(arguments: list[str], words: list[str]) -> None:
    assert words_of(arguments, {}) == words


def test_on_vertex_ai_all_words_are_the_servers() -> None:
    environment = {"AIP_MODE": "PREDICTION"}
    assert words_of([], environment) == ["tritonserver"]
    assert words_of(["--id=x"], environment) == ["tritonserver", "--id=x"]
    assert words_of(["gs://bucket/models"], environment) == ["tritonserver", "gs://bucket/models"]
    assert words_of(["tritonserver", "--id=x"], environment) == ["tritonserver", "--id=x"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trioton.container", *words], capture_output=True, text=True, check=False
    )


def test_each_is_run() -> None:
    assert run("trioton", "version").stdout.startswith("trioton ")
    assert run("tritonserver", "--version").stdout.startswith("trioton ")
    assert run(sys.executable, "-c", "print('other')").stdout == "other\n"
    ended = run("no-such-program")
    assert (ended.returncode, ended.stderr) == (127, "cannot run 'no-such-program': No such file or directory\n")
    ended = run("serve", "me")
    assert (ended.returncode, ended.stderr) == (1, "serve takes no arguments, got me\n")


@pytest.mark.skipif(Path("/opt/ml/model").exists(), reason="this machine is one of SageMaker's")
def test_serve_without_a_model() -> None:
    ended = run("serve")
    assert ended.returncode == 1
    assert "ERROR: No model found in model repository." in ended.stderr
