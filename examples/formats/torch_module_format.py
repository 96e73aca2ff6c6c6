"""`add_sub` and `image` as modules in a `model.py`, for the backend `pytorch` with its runtime in Python.

`model.py` holds the class, `model.pt` its weights. Needs the package torch. The runtime takes no strings, so there is
no `text`.
"""

from __future__ import annotations

from pathlib import Path

import pytorch_format
import torch

ADD_SUB = '''
"""Two results, in the order of the configuration's outputs."""

import torch


class AddSub(torch.nn.Module):
    def forward(self, left, right):
        return left + right, left - right
'''
NETWORK = '''
"""A convolution, the mean of each of its maps, and a dense layer; the weights are in model.pt."""

import torch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.maps = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.dense = torch.nn.Linear(8, 5)

    def forward(self, image):
        means = torch.relu(self.maps(image)).mean(dim=(2, 3))
        return torch.softmax(self.dense(means), dim=1)
'''
RUNTIME = 'runtime: "model.py"'


def add_sub(folder: Path) -> None:
    save(folder, ADD_SUB, pytorch_format.ADD_SUB)


def image(folder: Path) -> None:
    save(folder, NETWORK, pytorch_format.IMAGE)
    torch.save(pytorch_format.Network().state_dict(), folder / "1" / "model.pt")


def save(folder: Path, program: str, config: str) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.py").write_text(program.lstrip())
    (folder / "config.pbtxt").write_text(f"{config.strip()}\n{RUNTIME}\n")
