"""The worker's program as processes run it first of all that an engine has started by `multiprocessing`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from backends.engines.worker_link import MAIN
from tests.e2e.server_process import eventually, is_running

STARTED = """
import os, runpy, signal, sys, time
parent = os.getpid()
if sys.argv[2] == "orphan":
    if os.fork():
        os._exit(0)  # before its child could say that it wants to end with it
    while os.getppid() == parent:
        time.sleep(0.01)
print(os.getpid(), os.getppid(), flush=True)
runpy.run_path(sys.argv[1], run_name="__mp_main__")
print("runs", flush=True)
signal.pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["child", "orphan"])
def test_it_ends_where_its_parent_has_ended_before(kind: str) -> None:
    paths = os.pathsep.join([str(MAIN.parent), str(MAIN.parents[2] / "python" / "worker")])
    with subprocess.Popen(
        [sys.executable, "-c", STARTED, str(MAIN), kind],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    ) as process:
        assert process.stdout is not None
        pid, parent = map(int, process.stdout.readline().split())
        if parent != 1:  # it lives on also where another process takes orphans in: nobody can tell them there
            assert process.stdout.readline() == "runs\n"
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not is_running(pid))
        assert process.stdout.read() == ""
