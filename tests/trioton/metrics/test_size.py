"""How many bytes of a scrape a model has by default, which must stay small: a thousand models are scraped whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.messages import InferenceRequest, Tensor
from tests.trioton.metrics.texts import text_of
from tests.trioton.test_server import settings
from trioton.flags.server import BackendSetting
from trioton.server import open_server

pytestmark = pytest.mark.slow

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
TENSORS = """
input { name: "IN" data_type: TYPE_FP32 dims: -1 }
output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
"""
IN_LOOP = 'backend: "python"\nparameters { key: "ISOLATION" value { string_value: "in_loop" } }\n'
START = """control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }"""
CONFIGS = {
    "plain_model": IN_LOOP,
    "python_model": 'backend: "python"\n',
    "batch_model": IN_LOOP + "max_batch_size: 128\ndynamic_batching { preferred_batch_size: 8 }\n",
    "delay_model": IN_LOOP + "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 100 }\n",
    "sequence_model": IN_LOOP + f"max_batch_size: 8\nsequence_batching {{ {START} }}\n",
    "oldest_model": IN_LOOP + f"max_batch_size: 8\nsequence_batching {{ oldest {{}} {START} }}\n",
    "ensemble": """platform: "ensemble"
ensemble_scheduling { step {
  model_name: "plain_model" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }
} }
""",
}
MOST_BYTES = 2048


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, config in CONFIGS.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(MODEL)
        (tmp_path / name / "config.pbtxt").write_text(config + TENSORS)
    return tmp_path


def request_of(model: str, sequence: int) -> InferenceRequest:
    dims = (4,) if model in ("plain_model", "python_model", "ensemble") else (1, 4)
    inputs = [Tensor.from_numpy("IN", np.ones(dims, np.float32))]
    if model not in ("sequence_model", "oldest_model"):
        return InferenceRequest(model, inputs)
    return InferenceRequest(model, inputs, sequence_id=sequence, sequence_start=True, sequence_end=True)


async def test_a_model_has_at_most_two_kilobytes(repository: Path) -> None:
    """Of each kind, with the figures of some work."""
    in_loop = (BackendSetting("python", "allow-in-process", "true"),)
    async with open_server(settings(repository, backend_config=in_loop)) as server:
        for model in CONFIGS:
            for number in range(1, 21):
                await server.core.infer(request_of(model, number))
        lines = text_of(server._parts.metrics).splitlines(keepends=True)
    sizes = {model: sum(len(line) for line in lines if f'model="{model}"' in line) for model in CONFIGS}
    assert all(1000 < size < MOST_BYTES for size in sizes.values()), sizes
