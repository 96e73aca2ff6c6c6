"""`trioton analyze` on real servers: a search, a kill and what goes on, `apply`, and proposals for a running server."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from repository.pbtxt import parse_pbtxt
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

MARK = "TRIOTON_TEST_ANALYZE"

# Sleeping takes no processor, so the times are as they are said, however busy the machine is.
MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array * 2)]) for array in arrays]
"""
CONFIG = """backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    version = tmp_path / "models" / "slow" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "models"


def search(models: Path) -> list[str]:
    return [str(models), "--model=slow", "--latency=p99:1s", "--minutes=1", "--output=found"]


def started(mark: str, cwd: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trioton", "analyze", *words],
        cwd=cwd,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def processes(mark: str) -> set[int]:
    """All that a command with this mark has started and that run."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found


def is_gone(mark: str) -> bool:
    """Whether they have all ended, soon."""
    end = time.monotonic() + 30
    while processes(mark) and time.monotonic() < end:
        time.sleep(0.1)
    return not processes(mark)


def test_a_search_is_killed_goes_on_and_is_applied(models: Path, tmp_path: Path) -> None:
    mark = str(tmp_path)
    process = started(mark, tmp_path, *search(models))
    assert process.stderr is not None
    seen = 0
    while seen < 3:
        line = process.stderr.readline()
        assert line, "it has ended"
        seen += "/s: " in line
    assert len(processes(mark)) >= 3  # itself, its server, a worker
    process.kill()
    process.communicate()
    assert is_gone(mark)

    code, out, err = ended(started(mark, tmp_path, *search(models)))
    assert code == 0, err
    assert "measuring service times" not in err  # they were there already
    assert int(re.findall(r"(\d+) measurements were there already", err)[0]) >= 3
    assert is_gone(mark)
    result = json.loads((tmp_path / "found" / "result.json").read_text())
    by_name = {each["name"]: each for each in result["candidates"]}
    assert by_name[result["proposed"]]["rate"] > 0.9 * by_name["default"]["rate"] > 0
    assert by_name["default"]["memory_bytes"] > 20 << 20
    assert f"proposed: {result['proposed']}" in out
    assert (tmp_path / "found" / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert parse_pbtxt((tmp_path / "found/configs/00-default.pbtxt").read_text(), source="default").max_batch_size == 4

    other = next(name for name, each in by_name.items() if name != "default" and each["rate"])
    apply = ["apply", "found", f"--candidate={other}"]
    code, out, err = ended(started(mark, tmp_path, *apply))
    assert code == 0, err
    assert out.startswith("--- ")
    file = models / "slow" / "config.pbtxt"
    assert file.read_text() == CONFIG
    code, _, err = ended(started(mark, tmp_path, *apply, "--write"))
    assert code == 0, err
    assert file.read_text() != CONFIG
    assert parse_pbtxt(file.read_text(), source="applied").backend == "python"
    with ServerProcess(repository=models) as server:
        assert server.addresses


def test_another_command_does_not_go_on_there(models: Path, tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "letter.txt").touch()
    code, _, err = ended(started("x", tmp_path, *search(models)))
    assert code == 1
    assert "has files that are of no analysis" in err


def test_a_model_that_does_not_load(models: Path, tmp_path: Path) -> None:
    (models / "slow" / "1" / "model.py").write_text("raise RuntimeError('not today')")
    mark = str(tmp_path)
    code, _, err = ended(started(mark, tmp_path, *search(models)))
    assert code == 1
    assert "model 'slow' does not load" in err
    assert "not today" in err
    assert is_gone(mark)


def test_a_running_server_gets_proposals_without_load_and_a_spare_one_verifies_them(
    models: Path, tmp_path: Path
) -> None:
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()
    stop, mark = threading.Event(), str(tmp_path)
    file = models / "slow" / "config.pbtxt"
    file.write_text(f"{CONFIG}dynamic_batching {{ max_queue_delay_microseconds: 200000 }}\n")
    with ServerProcess("--metrics-config=histogram_latencies=true", repository=models) as server:
        url = f"http://{server.addresses['http']}/v2/models/slow/infer"

        def client(number: int) -> None:
            draw = random.Random(number)
            while not stop.wait(draw.expovariate(6)):
                urllib.request.urlopen(urllib.request.Request(url, body), timeout=30).read()

        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        try:
            address = server.addresses["http"]
            words = [f"--live={address}", "--model=slow", "--live-secs=6", f"--verify={models}", "--json"]
            code, out, err = ended(started(mark, tmp_path, *words))
            assert code == 0, err
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    [model] = json.loads(out)
    assert 2 < model["seen"]["rate"] < 40
    assert model["current"]["instances"] == 1
    assert model["seen"]["mean_latency"] > 0.02
    assert model["seen"]["p99"]["source"] == "histogram"
    texts = [each["text"] for each in model["proposals"]]
    assert "max_queue_delay_microseconds 200000 -> 0" in texts  # a wait for requests that do not come
    assert all(each["after"] < each["before"] for each in model["proposals"])
    verified = model["verified"]
    assert (len(verified["before"]), len(verified["after"]), verified["failed"]) == (2, 2, 0)
    assert min(verified["before"] + verified["after"]) > 0.02  # the model has answered
    assert is_gone(mark)
