"""The `pytorch` backend: TorchScript, `torch.export` and AOTInductor files, on CPU and NVIDIA GPUs.

`backend` holds the class; `options` reads the configuration, `model_file` tells the kinds of files apart, `program` and
its subclasses load and call them, `naming` finds the model's arguments by the configuration's names, `values` and
`device` bring arrays there and back. `runtime/` is the program for `runtime: "model.py"`, which runs in workers.
Importing this package needs the framework; the registry does it.
"""

from backends.pytorch.backend import PyTorchBackend

__all__ = ["PyTorchBackend"]
