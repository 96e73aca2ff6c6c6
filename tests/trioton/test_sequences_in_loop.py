"""Sequences of a model in the server's loop: their batches end within the call that gives them to the instance."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
import trio

from trioton.messages import InferenceRequest, Tensor
from trioton.server import Server, Settings, open_server

CONFIG = """
backend: "python" max_batch_size: 2
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching {
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } ] }
  ]
}
instance_group [ { kind: KIND_CPU count: 2 } ]
parameters { key: "ISOLATION" value { string_value: "in_loop" } }
"""
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = [0.0, 0.0]

    def execute(self, requests):
        responses = []
        for row, request in enumerate(requests):
            value, start, ready = (tensor.as_numpy().item() for tensor in request.inputs())
            if ready:  # else the row has no request this time
                self.sums[row] = value + (0 if start else self.sums[row])
            total = np.array([[self.sums[row]]], np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)]))
        return responses
"""


def request(sequence: int, step: int, steps: int) -> InferenceRequest:
    value = np.array([[sequence + step]], np.float32)
    return InferenceRequest(
        "sums",
        [Tensor.from_numpy("IN", value)],
        sequence_id=sequence,
        sequence_start=step == 0,
        sequence_end=step == steps - 1,
    )


async def run_sequence(server: Server, sequence: int, steps: int) -> None:
    total = 0
    for step in range(steps):
        total += sequence + step
        response = await server.models.infer(request(sequence, step, steps))
        assert response.outputs[0].as_numpy().item() == total


@pytest.mark.slow
async def test_each_sequence_keeps_its_row(tmp_path: Path) -> None:
    """More sequences than there are slots, so that those of the backlog get slots of others that have ended."""
    version = tmp_path / "sums" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(textwrap.dedent(MODEL))
    flags = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")
    settings = Settings.from_flags(
        [f"--model-repository={tmp_path}", "--backend-config=python,allow-in-process=true", *flags]
    )
    with trio.fail_after(60):
        async with open_server(settings) as server, trio.open_nursery() as nursery:
            for sequence in range(1, 13):
                nursery.start_soon(run_sequence, server, sequence, 5)
