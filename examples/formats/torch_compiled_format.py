"""`add_sub` and `image` compiled by AOTInductor, for the backend `pytorch`. Needs the package torch and a C++ compiler.

What is compiled is an exported program, for the processor of this machine; that takes some seconds. The names of
keyword arguments, and the keys of the dictionary that is returned, are the tensors' names. The file tells no datatypes,
so a model needs its `config.pbtxt`, and it checks no shapes: `dims` must be right. PyTorch has no strings here
(TorchScript has), so there is no `text`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytorch_format
import three_models
import torch
import torch_export_format
from torch.export import Dim

if not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
    raise ImportError("no C++ compiler is installed, as g++")


def add_sub(folder: Path) -> None:
    left, right = torch.zeros(2, three_models.LENGTH), torch.zeros(2, three_models.LENGTH)
    save(folder, torch_export_format.AddSub(), pytorch_format.ADD_SUB, INPUT0=left, INPUT1=right)


def image(folder: Path) -> None:
    pixels = torch.zeros(2, three_models.CHANNELS, three_models.SIDE, three_models.SIDE)
    save(folder, torch_export_format.Network(), pytorch_format.IMAGE, IMAGE=pixels)


def save(folder: Path, module: torch.nn.Module, config: str, **arguments: torch.Tensor) -> None:
    """For any number of rows."""
    rows = {name: {0: Dim("rows")} for name in arguments}
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config.lstrip())
    program = torch.export.export(module.eval(), (), arguments, dynamic_shapes=rows)
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "1" / "model.pt2"))
