"""`add_sub` and `image` as exported programs, for the backend `pytorch`. Needs the package torch.

The file tells names, datatypes and shapes, so a model needs no `config.pbtxt` but for what it does not tell; here it is
written out. The number of rows must be declared as one that varies. PyTorch has no strings here (TorchScript has), so
there is no `text`.
"""

from __future__ import annotations

from pathlib import Path

import pytorch_format
import three_models
import torch
from torch.export import Dim


class AddSub(torch.nn.Module):
    """The keys of a dictionary are the outputs' names."""

    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: N803
        return {"OUTPUT0": INPUT0 + INPUT1, "OUTPUT1": INPUT0 - INPUT1}


class Network(pytorch_format.Network):
    def forward(self, IMAGE: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: N803
        return {"SCORES": super().forward(IMAGE)}


def add_sub(folder: Path) -> None:
    # Two tensors: given the same one twice, the program would take one input for both.
    left, right = torch.zeros(2, three_models.LENGTH), torch.zeros(2, three_models.LENGTH)
    save(folder, export(AddSub(), left, right), pytorch_format.ADD_SUB)


def image(folder: Path) -> None:
    pixels = torch.zeros(2, three_models.CHANNELS, three_models.SIDE, three_models.SIDE)
    save(folder, export(Network(), pixels), pytorch_format.IMAGE)


def export(module: torch.nn.Module, *arguments: torch.Tensor) -> torch.export.ExportedProgram:
    """With a first dimension of any size, the same for all arguments."""
    rows = Dim("rows")
    return torch.export.export(module.eval(), arguments, dynamic_shapes=tuple({0: rows} for _ in arguments))


def save(folder: Path, program: torch.export.ExportedProgram, config: str) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    torch.export.save(program, folder / "1" / "model.pt2")
    (folder / "config.pbtxt").write_text(config.lstrip())
