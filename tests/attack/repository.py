"""The models that are attacked: the same sum in a worker and in the server's loop, strings, a decoupled model, a
sequence, and an ensemble of two of them."""

from __future__ import annotations

from pathlib import Path

_SUM = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", left + right), pb_utils.Tensor("OUTPUT1", left - right)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""

_TEXT = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT_OUT", text)]) for text in texts]
"""

_COUNT = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            sender = request.get_response_sender()
            for number in range(min(count, 1000)):
                if sender.is_cancelled():
                    break
                output = pb_utils.Tensor("NUMBER", np.array([number], dtype=np.int32))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

_ADDED_UP = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            value, start, number = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]
                for name in ("VALUE", "START", "CORRID")
            )
            self.sums[number] = int(value) + (0 if start else self.sums.get(number, 0))
            output = pb_utils.Tensor("SUM", np.array([[self.sums[number]]], dtype=np.int32))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""

_SUM_TENSORS = """
max_batch_size: 64
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
"""

_IN_LOOP = 'parameters { key: "ISOLATION" value { string_value: "in_loop" } }\n'

_SEQUENCE = """
sequence_batching {
  max_sequence_idle_microseconds: 2000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
max_batch_size: 8
input [ { name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""

_CHAIN = """
platform: "ensemble"
ensemble_scheduling { step [
  { model_name: "sum" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } input_map { key: "INPUT1" value: "INPUT1" }
    output_map { key: "OUTPUT0" value: "between0" } output_map { key: "OUTPUT1" value: "between1" } },
  { model_name: "sum_in_loop" model_version: -1
    input_map { key: "INPUT0" value: "between0" } input_map { key: "INPUT1" value: "between1" }
    output_map { key: "OUTPUT0" value: "OUTPUT0" } output_map { key: "OUTPUT1" value: "OUTPUT1" } }
] }
"""

MODELS = {
    "sum": ('backend: "python"\ndynamic_batching { }' + _SUM_TENSORS, _SUM),
    "sum_in_loop": ('backend: "python"\ndynamic_batching { }\n' + _IN_LOOP + _SUM_TENSORS, _SUM),
    "chain": (_CHAIN + _SUM_TENSORS, None),
    "text": (
        'backend: "python"\nmax_batch_size: 0\n'
        'input [ { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ]\n'
        'output [ { name: "TEXT_OUT" data_type: TYPE_STRING dims: [ -1 ] } ]\n',
        _TEXT,
    ),
    "count": (
        'backend: "python"\nmax_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n'
        'input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        'output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]\n',
        _COUNT,
    ),
    "added_up": ('backend: "python"\n' + _SEQUENCE, _ADDED_UP),
}


def build(folder: Path) -> Path:
    """Write the repository into `folder`, and return it."""
    for name, (config, code) in MODELS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
        if code is not None:
            (version / "model.py").write_text(code.lstrip())
    return folder
