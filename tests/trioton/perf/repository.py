"""A repository of small models that the tests measure, in the server's loop where they can be."""

from __future__ import annotations

import textwrap
from pathlib import Path

_IN_LOOP = 'parameters { key: "ISOLATION" value { string_value: "in_loop" } }'
_ADD_CONFIG = f"""
backend: "python" max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{_IN_LOOP}
"""
_ADD = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + 1)])
            for request in requests
        ]
"""
_ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "add" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "mid" } },
  { model_name: "add" model_version: -1 input_map { key: "IN" value: "mid" } output_map { key: "OUT" value: "OUT" } }
] }
"""
_WORDS_CONFIG = """
backend: "python" max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_WORDS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(3):
                output = pb_utils.Tensor("text_output", np.array([f"word {number}".encode()], np.object_))
                sender.send(pb_utils.InferenceResponse([output]))
                time.sleep(0.005)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write_models(folder: Path) -> None:
    """`add`, `twice` (an ensemble of it) and `words` (decoupled, three responses 5 ms apart)."""
    write_model(folder / "add", _ADD_CONFIG, _ADD)
    write_model(folder / "twice", _ENSEMBLE)
    write_model(folder / "words", _WORDS_CONFIG, _WORDS)


def write_model(folder: Path, config: str, code: str = "") -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    if code:
        (version / "model.py").write_text(textwrap.dedent(code))


def flags(folder: Path) -> list[str]:
    """Of a server on free ports."""
    ports = [f"--{service}-port=0" for service in ("http", "grpc", "metrics")]
    addresses = [f"--{service}-address=127.0.0.1" for service in ("http", "grpc", "metrics")]
    return [f"--model-repository={folder}", "--backend-config=python,allow-in-process=true", *ports, *addresses]
