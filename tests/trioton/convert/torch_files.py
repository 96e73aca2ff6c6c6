"""A program that makes files of `net.py` in its working directory: honest ones, and mutants of torch's own making."""

from __future__ import annotations

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.normal = torch.nn.BatchNorm2d(8)
        self.dropout = torch.nn.Dropout(0.5)
        self.linear = torch.nn.Linear(8, 6)
        with torch.no_grad():
            self.linear.weight *= scale

    def forward(self, image):
        features = torch.relu(self.normal(self.convolution(image))).mean((2, 3))
        return self.linear(self.dropout(features)), features

def make():
    return Net()
"""
MAKE = """
import torch
from net import Net

image = torch.randn(2, 3, 8, 8)
names = {"input_names": ["image"], "output_names": ["OUTPUT__0", "OUTPUT__1"]}
axes = {"image": {0: "batch", 2: "height", 3: "width"}, "OUTPUT__0": {0: "batch"}, "OUTPUT__1": {0: "batch"}}
for name, net, more in (
    ("honest", Net().eval(), {}),
    ("scaled", Net(scale=1.01).eval(), {}),
    ("training", Net().train(), {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}),
):
    torch.onnx.export(net, (image,), name + ".onnx", dynamo=False, dynamic_axes=axes, **names, **more)
size = torch.export.Dim.DYNAMIC
for name, sizes in ("net", {0: size, 2: size, 3: size}), ("frozen", {2: size, 3: size}):
    torch.export.save(torch.export.export(Net().eval(), (image,), dynamic_shapes=(sizes,)), name + ".pt2")
torch.save(Net().state_dict(), "weights.bin")
torch.jit.trace(Net().eval(), image).save("traced.pt")
"""
