"""The programs under test, by the variables that name them, and a server's command for those that start one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.e2e.repository import add_add_sub

ROOT = Path(__file__).parents[3]
MODEL_ANALYZER = "TRIOTON_MODEL_ANALYZER"
PERF_ANALYZER = "TRIOTON_PERF_ANALYZER"
AIPERF = "TRIOTON_AIPERF"

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [
  { name: "A" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "B" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [ { name: "RESULT" data_type: TYPE_FP32 dims: [ 16 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "add_sub"
      model_version: -1
      input_map { key: "INPUT0" value: "A" }
      input_map { key: "INPUT1" value: "B" }
      output_map { key: "OUTPUT0" value: "sum" }
      output_map { key: "OUTPUT1" value: "difference" }
    },
    {
      model_name: "second"
      model_version: -1
      input_map { key: "INPUT0" value: "sum" }
      input_map { key: "INPUT1" value: "difference" }
      output_map { key: "OUTPUT0" value: "RESULT" }
    }
  ]
}
"""


def program(variable: str) -> Path:
    """What a variable names; the test is skipped where there is none."""
    given = os.environ.get(variable)
    if not given:
        pytest.skip(f"{variable} names no program")
    path = Path(given)
    assert path.is_file(), f"{variable} is {given}, which is no file"
    return path


def run(
    command: Sequence[object], folder: Path, timeout: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Of a tool, in a folder of its own; what it said is shown where the test fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**without_proxies(), **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    print(done.stdout)
    return done


def without_proxies() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}


def executable(path: Path, *command: str) -> Path:
    """A program that runs a command of this Python, as Model Analyzer wants one path for what it starts."""
    words = " ".join(f"'{word}'" for word in (sys.executable, *command))
    path.write_text(f"#!/bin/sh\nPYTHONPATH='{ROOT}' exec {words} \"$@\"\n")
    path.chmod(0o755)
    return path


def tritonserver(folder: Path) -> Path:
    return executable(folder / "tritonserver", "-m", "trioton.tritonserver")


def free_ports(count: int) -> list[int]:
    """That nobody has at the moment: the tools want to be told theirs."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def build_models(repository: Path) -> Path:
    """Two models, and an ensemble of them."""
    for name in ("add_sub", "second"):
        add_add_sub(repository / name, versions=(1,))
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    return repository
