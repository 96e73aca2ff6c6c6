"""What a model holds is given back when it is unloaded or replaced: processes, threads, files and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.client import Client
from tests.e2e.generations import ask, write_python
from tests.e2e.repository import save
from tests.e2e.server_process import ServerProcess, eventually

MEGABYTES = 64
ROUNDS = 6


@dataclass(frozen=True)
class Held:
    """By a server: its workers, and of its own its threads, open files and resident megabytes."""

    processes: int
    threads: int
    files: int
    megabytes: int


def held(server: ServerProcess) -> Held:
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if ":\t" in line
    )
    return Held(
        len(server.workers()),
        int(status["Threads"]),
        len(list(Path(f"/proc/{server.pid}/fd").iterdir())),
        int(status["VmRSS"].split()[0]) // 1024,
    )


def add_large(model: Path) -> None:
    """OUT = IN + 0 * the sum of many weights, which cannot be folded away: they are looked up by IN."""
    weights = np.random.default_rng(0).integers(0, 1 << 62, MEGABYTES << 17, dtype=np.int64)
    nodes = [
        helper.make_node("Gather", ["weights", "IN"], ["weight"]),
        helper.make_node("Sub", ["weight", "weight"], ["zero"]),
        helper.make_node("Add", ["IN", "zero"], ["OUT"]),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", 1]) for name in ("IN", "OUT")]
    file = model / "1" / "model.onnx"
    save(nodes, tensors[:1], tensors[1:], file, initializers=[numpy_helper.from_array(weights, "weights")])
    (model / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 4 instance_group [ { count: 1 kind: KIND_CPU } ]'
    )


@pytest.mark.parametrize("add", [add_large, lambda model: write_python(model, 0)], ids=["onnxruntime", "python"])
def test_nothing_is_left_after_many_loads(tmp_path: Path, add: Callable[[Path], None]) -> None:
    """Loaded, reloaded beside itself and unloaded again and again, it leaves the server as after the first time."""
    add(tmp_path / "m")
    config = tmp_path / "m" / "config.pbtxt"
    text = config.read_text()

    with (
        ServerProcess("--model-control-mode=explicit", repository=tmp_path) as server,
        Client("http", server.addresses["http"]) as client,
    ):

        def round_trip(number: int) -> None:
            client.raw.load_model("m")
            assert ask(client, "m", 3) == (0, "1")
            config.write_text(f"{text}\n# {number}\nmetric_tags {{ key: 'round' value: '{number}' }}\n")
            client.raw.load_model("m")
            assert ask(client, "m", 4) == (0, "1")
            client.raw.unload_model("m")
            assert eventually(lambda: client.raw.get_model_repository_index()[0].get("reason") == "unloaded")
            assert eventually(lambda: not server.workers())

        round_trip(0)
        first = held(server)
        for number in range(1, ROUNDS):
            round_trip(number)

        # Threads that wait for work end after a while.
        assert eventually(lambda: held(server).threads <= first.threads), (first, held(server))
        last = held(server)
        print(f"after one round: {first}; after {ROUNDS}: {last}")
        assert last.processes == 0
        assert last.files <= first.files, (first, last)
        # Twice the weights in each round, and once more beside themselves.
        assert last.megabytes < first.megabytes + MEGABYTES, (first, last)
