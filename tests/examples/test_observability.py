"""`examples/observability`: rules pass their tests, boards show data, alerts fire when they should."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.server_process import ServerProcess
from tests.examples.observability import (
    FOLDER,
    IS_INSTALLED,
    PROMTOOL,
    WHY_NOT,
    Prometheus,
    prometheus_of,
    wait_until,
)

pytestmark = pytest.mark.slow
needs_prometheus = pytest.mark.skipif(not IS_INSTALLED, reason=WHY_NOT)

MODEL = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.05)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
CONFIG = """
backend: "python"
max_batch_size: 2
dynamic_batching { default_queue_policy { max_queue_size: 2 } }
input { name: "IN" data_type: TYPE_FP32 dims: -1 }
output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
model_metrics { metric_control {
  metric_identifier { family: "trioton_batch_size" } histogram_options { buckets: [ 1, 2 ] }
} }
"""
BOARDS = sorted(FOLDER.glob("board-*.json"))


def board(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def expressions(path: Path) -> list[str]:
    return [target["expr"] for panel in board(path)["panels"] for target in panel["targets"]]


@needs_prometheus
@pytest.mark.parametrize("arguments", [["check", "config", "prometheus.yml"], ["test", "rules", "rules_test.yml"]])
def test_promtool_is_content(arguments: list[str]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test_and_says_what_to_do() -> None:
    text, tests = (FOLDER / "rules.yml").read_text(), (FOLDER / "rules_test.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", text)
    assert len(alerts) == text.count("summary:") == text.count("description:") == text.count("severity:") > 10
    assert [alert for alert in alerts if f"alertname: {alert}" not in tests] == []


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_the_panels_of_a_board_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    panels = board(path)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_boards_have_ids_of_their_own() -> None:
    boards = [board(path) for path in BOARDS]
    assert len({each["uid"] for each in boards}) == len(BOARDS) == 2
    assert all(each["schemaVersion"] >= 38 and each["tags"] == ["trioton"] for each in boards)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("m", "other"):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(MODEL)
        (folder / name / "config.pbtxt").write_text(CONFIG)
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(*flags, repository=folder) as process:
        process.addresses  # noqa: B018 (waits until they are there)
        (folder / "other" / "config.pbtxt").write_text(CONFIG + "max_batch_size: x")
        yield process


@pytest.fixture(scope="module")
def prometheus(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with prometheus_of(server.addresses["metrics"], tmp_path_factory.mktemp("prometheus")) as running:
        yield running


def infer(server: ServerProcess, columns: int = 4) -> None:
    with Client("http", server.addresses["http"]) as client:
        client.infer("m", {"IN": np.ones((1, columns), np.float32)})


def overflow(server: ServerProcess) -> None:
    """More requests at once than the instance, its batch and its queue take."""

    def ask() -> None:
        with suppress(InferenceServerException):
            infer(server)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def filled_in(expression: str) -> str:
    """As Grafana fills in its variables, where all is chosen."""
    expression = expression.replace("$__rate_interval", "10m").replace("$job", "trioton")
    return re.sub(r"\$(instance|model|version)", ".*", expression)


@needs_prometheus
def test_everything_on_the_boards_has_data(server: ServerProcess, prometheus: Prometheus) -> None:
    infer(server, 100_000)
    infer(server)

    def without_data() -> list[str]:
        infer(server)
        asked = [expression for path in BOARDS for expression in expressions(path)]
        return [each for each in asked if not prometheus.query(filled_in(each))]

    assert wait_until(lambda: not without_data()), without_data()


@needs_prometheus
def test_alerts_fire(server: ServerProcess, prometheus: Prometheus) -> None:
    """None while all is well; then one for a worker that was killed, for a load that fails, for a full queue."""
    infer(server)
    assert wait_until(lambda: prometheus.query("trioton_instance_restarts_total"))
    assert not {alert for alert, _ in prometheus.firing()} & {
        "TriotonInstanceRestarts",
        "TriotonModelLoadFailed",
        "TriotonQueueOverflow",
        "TriotonDown",
        "TriotonErrors",
        "TriotonDefect",
    }
    for worker in server.workers():
        os.kill(worker, signal.SIGKILL)
    with Client("http", server.addresses["http"]) as client, pytest.raises(InferenceServerException):
        client.raw.load_model("other")
    overflow(server)
    wanted = {
        ("TriotonInstanceRestarts", "m"),
        ("TriotonModelLoadFailed", "other"),
        ("TriotonQueueOverflow", "m"),
    }
    assert wait_until(lambda: wanted <= prometheus.firing()), prometheus.firing()
