"""The three models as TorchScript, for the backend `pytorch`. Needs the package torch.

Arguments of `forward` are called as the inputs; results are named by their position (`<name>__<index>`) or stand in the
configuration's order.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import List  # noqa: UP035 (TorchScript reads it)

import three_models
import torch

ADD_SUB = """
backend: "pytorch"
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
"""
# Lists of strings have one dimension, which is the batch.
TEXT = """
backend: "pytorch"
max_batch_size: 8
input [ { name: "NAME" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } } ]
output [ { name: "GREETING" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } } ]
dynamic_batching { }
"""
IMAGE = """
backend: "pytorch"
max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 5 ] } ]
dynamic_batching { }
"""


class AddSub(torch.nn.Module):
    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor):  # noqa: N803 (they are the inputs' names)
        return INPUT0 + INPUT1, INPUT0 - INPUT1


class Greeting(torch.nn.Module):
    def forward(self, NAME: List[str]) -> List[str]:  # noqa: N803, UP006
        return ["Hello, " + name + "!" for name in NAME]


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weights = three_models.ImageWeights()
        self.maps = torch.nn.Conv2d(
            three_models.CHANNELS,
            three_models.FILTERS,
            three_models.KERNEL,
            stride=three_models.STRIDE,
            padding=three_models.PADDING,
        )
        self.dense = torch.nn.Linear(three_models.FILTERS, three_models.CLASSES)
        for parameter, array in (
            (self.maps.weight, weights.filters),
            (self.maps.bias, weights.filter_bias),
            (self.dense.weight, weights.dense),
            (self.dense.bias, weights.dense_bias),
        ):
            parameter.data = torch.from_numpy(array)

    def forward(self, IMAGE: torch.Tensor):  # noqa: N803
        means = torch.relu(self.maps(IMAGE)).mean(dim=(2, 3))
        return torch.softmax(self.dense(means), dim=1)


def add_sub(folder: Path) -> None:
    save(folder, AddSub(), ADD_SUB)


def text(folder: Path) -> None:
    save(folder, Greeting(), TEXT)


def image(folder: Path) -> None:
    save(folder, Network(), IMAGE)


def save(folder: Path, module: torch.nn.Module, config: str) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch would have everybody use torch.export
        torch.jit.script(module.eval()).save(str(folder / "1" / "model.pt"))
    (folder / "config.pbtxt").write_text(config.lstrip())
