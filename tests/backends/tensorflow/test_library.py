"""What the library is to a whole process: imported without talk, with pools of threads that nobody's cores bind."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("tensorflow")

from backends.tensorflow.options import TensorFlowOptions
from backends.tensorflow.thread_pools import ThreadPools
from tests.backends.tensorflow.tensorflow_models import sum_of

# The first instance of the process is bound to a core; the library's threads are made for it and for all that follow.
FIRST_INSTANCE = """
import os, sys
from dataclasses import replace
from pathlib import Path
import trio
from tests.backends.helpers import loaded, source_of, spec_of

config = '''
backend: "tensorflow"
input [ { name: "A" data_type: TYPE_FP32 dims: [ -1, 3 ] }, { name: "B" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
'''

async def main():
    from backends.tensorflow import TensorFlowBackend

    core = max(os.sched_getaffinity(0))
    spec = replace(spec_of(source_of(config, Path(sys.argv[1]))), cpu_cores=frozenset({core}))
    before = set(os.listdir("/proc/self/task"))
    async with loaded(TensorFlowBackend, spec) as backend:
        own = str(backend._thread._thread.native_id)
        made = set(os.listdir("/proc/self/task")) - before - {own}
        bound = {number for number in made if len(os.sched_getaffinity(int(number))) == 1}
        print(len(made) > 0, bound, os.sched_getaffinity(int(own)) == {core}, "TF_CPP_MIN_LOG_LEVEL" in os.environ)

trio.run(main)
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not bind threads to cores")
async def test_the_first_instance_of_a_process(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores to choose from")
    sum_of(tmp_path)
    command = [sys.executable, "-W", "error", "-c", FIRST_INSTANCE, str(tmp_path)]
    environment = {name: text for name, text in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, env=environment)
    assert done.stdout == b"True set() True False\n"
    # The library says at its very start, before it reads how much to say, what it computes with.
    talk = [line for line in done.stderr.decode().splitlines() if "oneDNN" not in line and "absl::" not in line]
    assert talk == []


def test_the_first_model_decides_on_the_pools_and_others_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = []
    monkeypatch.setattr("backends.tensorflow.thread_pools._make", made.append)
    pools = ThreadPools()
    with caplog.at_level(logging.WARNING):
        pools.prepare(TensorFlowOptions(intra_op_threads=2), "first")
        pools.prepare(TensorFlowOptions(intra_op_threads=2), "same")
        pools.prepare(TensorFlowOptions(), "any")
        pools.prepare(TensorFlowOptions(inter_op_threads=3, has_own_threads=True), "apart")
        pools.prepare(TensorFlowOptions(inter_op_threads=1), "in_its_own_thread")
        assert caplog.text == ""
        pools.prepare(TensorFlowOptions(intra_op_threads=4, inter_op_threads=3), "other")
    assert made == [{"TF_NUM_INTRA_THREADS": 2, "TF_NUM_INTER_THREADS": 0}]
    assert "model 'other' wants TF_NUM_INTRA_THREADS 4" in caplog.text
    assert "model 'first', which came first, has left it at 2" in caplog.text
    assert "model 'other' wants TF_NUM_INTER_THREADS 3" in caplog.text
    assert "has left it at the library's own number" in caplog.text
