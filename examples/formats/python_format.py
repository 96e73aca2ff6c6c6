"""The three models as `model.py` files, for the backend `python`. Needs numpy only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import three_models

ADD_SUB = '''
"""OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        left, right = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT0", left + right), pb_utils.Tensor("OUTPUT1", left - right)]
        )
'''
TEXT = '''
"""GREETING = Hello, NAME!"""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        names = pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy()
        greetings = [b"Hello, " + name + b"!" for name in names.reshape(-1)]
        array = np.array(greetings, dtype=np.object_).reshape(names.shape)
        return pb_utils.InferenceResponse([pb_utils.Tensor("GREETING", array)])
'''
# All requests of a batch are joined, so that the arithmetic is done once.
IMAGE = '''
"""SCORES of five classes from an IMAGE, by weights that lie beside this file."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.load(Path(__file__).with_name("weights.npz"))

    def execute(self, requests):
        images = [pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy() for request in requests]
        ends = np.cumsum([len(each) for each in images])[:-1]
        parts = np.split(self.scores(np.concatenate(images)), ends)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", part)]) for part in parts]

    def scores(self, images):
        padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
        maps = np.einsum("nchwij,fcij->nfhw", windows, self.weights["filters"])
        means = np.maximum(maps + self.weights["filter_bias"][:, None, None], 0).mean(axis=(2, 3))
        logits = means @ self.weights["dense"].T + self.weights["dense_bias"]
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
'''
CONFIGS = {
    "add_sub": """
backend: "python"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
dynamic_batching { }
""",
    "text": """
backend: "python"
max_batch_size: 8
input [ { name: "NAME" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "GREETING" data_type: TYPE_STRING dims: [ 1 ] } ]
dynamic_batching { }
""",
    "image": """
backend: "python"
max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 5 ] } ]
dynamic_batching { }
""",
}


def add_sub(folder: Path) -> None:
    save(folder, ADD_SUB, CONFIGS["add_sub"])


def text(folder: Path) -> None:
    save(folder, TEXT, CONFIGS["text"])


def image(folder: Path) -> None:
    save(folder, IMAGE, CONFIGS["image"])
    np.savez(folder / "1" / "weights.npz", **vars(three_models.ImageWeights()))


def save(folder: Path, model: str, config: str) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.py").write_text(model.lstrip())
    (folder / "config.pbtxt").write_text(config.lstrip())
