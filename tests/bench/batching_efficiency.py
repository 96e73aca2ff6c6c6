"""How much of a model's throughput is left through the server: `python -m tests.bench.batching_efficiency`.

A model that keeps one core busy is asked by many clients, one row each, and the dynamic batcher joins them. Beside it
the same onnxruntime session is called in a loop of its own, with batches that are always full: no server can be faster.
The efficiency is the first rate over the second, in rows per second. Part of `make bench`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from backends.onnxruntime.options import read_options, session_options
from repository.pbtxt import parse_pbtxt
from tests.bench.load import WINDOWS, LoadGenerator, Protocol, Row
from tests.bench.peers import Peer, Server, our_server
from tests.bench.prepare import DEFAULT_FOLDER, prepare
from tests.bench.report import table

MODEL = "dense"
BATCH = 16
WIDTH, POSITIONS, LAYERS = 256, 128, 12
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
# For the batch that runs, the one that is given ahead, and as many requests again that are on their way.
CONCURRENCY = 4 * BATCH
CONFIG = f"""
backend: "onnxruntime"
max_batch_size: {BATCH}
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
# One core computes; the others are for the server and its clients.
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
"""


@dataclass(slots=True)
class Efficiency:
    """What the rounds have shown for one kind of load; rates in rows per second."""

    row: Row
    served: list[float] = field(default_factory=list)
    direct: list[float] = field(default_factory=list)  # of the same rounds

    @property
    def ratios(self) -> list[float]:
        return [served / direct for served, direct in zip(self.served, self.direct, strict=True)]


def write_repository(folder: Path) -> Path:
    """The model repository of the one model; returns its folder."""
    model = folder / MODEL
    (model / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(dense_model(), str(model / "1" / "model.onnx"))
    (model / "config.pbtxt").write_text(CONFIG)
    return folder


def dense_model() -> onnx.ModelProto:
    """A row of X is put at many positions and goes through dense layers: 100 million multiplications for each row, of
    few weights, so that what counts is computing and not memory."""
    random = np.random.default_rng(0)

    def constant(name: str, *shape: int) -> onnx.TensorProto:
        values = random.standard_normal(shape) / np.sqrt(shape[-1])
        return numpy_helper.from_array(values.astype(np.float32), name)

    constants = [constant("positions", POSITIONS, WIDTH), numpy_helper.from_array(np.array([1]), "axis")]
    nodes = [
        helper.make_node("Unsqueeze", ["X", "axis"], ["x"]),
        helper.make_node("Add", ["x", "positions"], ["layer_0"]),
    ]
    for layer in range(LAYERS):
        constants.append(constant(f"weights_{layer}", WIDTH, WIDTH))
        nodes.append(helper.make_node("MatMul", [f"layer_{layer}", f"weights_{layer}"], [f"sums_{layer}"]))
        nodes.append(helper.make_node("Relu", [f"sums_{layer}"], [f"layer_{layer + 1}"]))
    nodes.append(helper.make_node("ReduceMean", [f"layer_{LAYERS}"], ["Y"], axes=[1], keepdims=0))
    tensor = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=["rows", WIDTH])
    graph = helper.make_graph(nodes, MODEL, [tensor("X")], [tensor("Y")], constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def open_session(repository: Path) -> Any:
    """The session that the server's instance has."""
    config = parse_pbtxt(CONFIG, source="config.pbtxt")
    path = repository / MODEL / "1" / "model.onnx"
    return onnxruntime.InferenceSession(
        str(path), session_options(read_options(config)), providers=["CPUExecutionProvider"]
    )


def direct_rate(session: Any, seconds: float) -> float:
    """Rows per second of full batches, one after the other."""
    rows = np.random.default_rng(1).random((BATCH, WIDTH), dtype=np.float32)
    for _ in range(3):
        session.run(["Y"], {"X": rows})
    runs, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        session.run(["Y"], {"X": rows})
        runs += 1
    return runs * BATCH / (time.perf_counter() - began)


def measure(load: LoadGenerator, peer: Peer, *, rounds: int, folder: Path = DEFAULT_FOLDER) -> list[Efficiency]:
    """All kinds of load, in turns with the direct calls: the machine is not equally fast at all times.

    Raises:
        PeerError: the server does not start.
        LoadFailed: a turn gave no figures.
    """
    repository = write_repository(folder / "efficiency")
    session = open_session(repository)
    seconds = WINDOWS * load.window_ms / 1000
    found = [Efficiency(Row(MODEL, protocol, CONCURRENCY)) for protocol in PROTOCOLS]
    log = folder / "efficiency.log"
    log.write_bytes(b"")
    server = Server(replace(peer, models=repository), log)
    try:
        server.start()
        for _ in range(rounds):
            for each in found:
                before = direct_rate(session, seconds / 2)
                each.served.append(load.run(each.row, server.address(each.row.protocol)).throughput)
                each.direct.append((before + direct_rate(session, seconds / 2)) / 2)
    finally:
        server.stop()
    return found


def report(found: Sequence[Efficiency]) -> str:
    header = ["protocol", "concurrency", "rows/s through the server", "rows/s direct", "efficiency", "range"]
    lines = [
        [
            each.row.protocol,
            str(each.row.concurrency),
            f"{median(each.served):,.0f}",
            f"{median(each.direct):,.0f}",
            f"{median(each.ratios):.2f}",
            f"{min(each.ratios):.2f} to {max(each.ratios):.2f}",
        ]
        for each in found
    ]
    return table(header, lines, text_columns=1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure how much of a model's throughput is left through the server.")
    parser.add_argument("--rounds", type=int, default=3, help="turns for each kind of load (default %(default)s)")
    parser.add_argument("--window-ms", type=int, default=1000, help="one of a turn's three windows (default 1000)")
    options = parser.parse_args(arguments)
    tools = prepare()
    load = LoadGenerator(tools.analyzer, tools.analyzer_environment, options.window_ms)
    print(report(measure(load, our_server(), rounds=options.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
