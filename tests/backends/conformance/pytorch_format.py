"""Files of PyTorch: TorchScript, exported programs, and models compiled by AOTInductor."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from backends.interface import Backend
from backends.registry import BackendRegistry
from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from repository.pbtxt import parse_pbtxt
from tests.backends.conformance.format import Arrays, Contradiction, Direct, Format, identity_config
from tests.examples.loading import EXAMPLES, load_example

NUMBERS = frozenset(BY_PROTOCOL_NAME.values()) - {DataType.BYTES}


class PyTorchFormat(Format):
    """What all files of PyTorch have in common; `call` is the framework on one of them."""

    backend = "pytorch"
    packages = ("torch",)
    broken = "failed to load model 'with_broken_file': .* is no file of PyTorch"
    framework: ClassVar[tuple[str, ...]] = ("torch",)
    install = r"needs the torch package: pip install 'trioton\[torch\]'"

    def call(self, path: Path) -> Any:
        raise NotImplementedError

    def direct(self, folder: Path) -> Direct:
        import torch

        path, *_ = (folder / "1").iterdir()
        module = self.call(path)
        names = [entry.name for entry in parse_pbtxt((folder / "config.pbtxt").read_text(), source="").output]

        def run(inputs: Arrays) -> Arrays:
            with torch.inference_mode():
                found = module(*(_value(array) for array in inputs.values()))
            if isinstance(found, dict):
                return {name: value.numpy() for name, value in found.items()}
            values = found if isinstance(found, tuple) else (found,)
            return {name: _array(value) for name, value in zip(names, values, strict=True)}

        return run


class TorchScriptFormat(PyTorchFormat):
    name = "torchscript"
    example = "pytorch_format"
    datatypes = NUMBERS
    has_heavy = True
    contradictions = (
        Contradiction(
            'INPUT0" data_type: TYPE_FP32',
            'INPUT0" data_type: TYPE_STRING',
            "expects datatype TYPE_STRING for input 'INPUT0', model takes a tensor",
        ),
        Contradiction(
            ',\n  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }', "", "expects 1 inputs, model provides 2"
        ),
    )

    def call(self, path: Path) -> Any:
        import torch

        return torch.jit.load(str(path))  # type: ignore[no-untyped-call]

    def identity(self, folder: Path, datatype: DataType, dims: int = 1) -> None:
        from tests.backends.pytorch.torch_models import Identity, save_script

        save_script(Identity(), folder, identity_config(self.backend, datatype, dims))

    def heavy(self, folder: Path, megabytes: int) -> None:
        from tests.backends.pytorch.torch_models import Heavy, save_script

        self.rows_model(folder)
        save_script(Heavy(megabytes), folder, (folder / "config.pbtxt").read_text())


class ExportedFormat(PyTorchFormat):
    name = "torch_export"
    example = "torch_export_format"
    models = frozenset({"add_sub", "image"})
    no_text = "PyTorch has no strings here"
    datatypes = NUMBERS
    minimal_config = 'backend: "pytorch" max_batch_size: 8'
    has_heavy = True
    contradictions = (
        Contradiction(
            'INPUT0" data_type: TYPE_FP32',
            'INPUT0" data_type: TYPE_FP64',
            "configuration expects datatype TYPE_FP64 for input 'INPUT0', model provides TYPE_FP32",
        ),
        Contradiction("dims: [ 16 ]", "dims: [ 17 ]", r"tensor 'INPUT0': the model expects 2 dimensions"),
        Contradiction("dims: [ 16 ]", "dims: [ -1 ]", r"tensor 'INPUT0': the model expects 2 dimensions"),
    )

    def call(self, path: Path) -> Any:
        import torch

        return torch.export.load(path).module()

    def identity(self, folder: Path, datatype: DataType, dims: int = 1) -> None:
        from tests.backends.pytorch.torch_models import Identity, save_exported, torch_dtype

        shape = (2, *range(3, 3 + dims))
        config = identity_config(self.backend, datatype, dims)
        save_exported(Identity(), folder, config, shape, torch_dtype(datatype), dims=range(1 + dims))

    def heavy(self, folder: Path, megabytes: int) -> None:
        from tests.backends.pytorch.torch_models import Heavy, save_exported, torch_dtype

        self.rows_model(folder)
        config = (folder / "config.pbtxt").read_text()
        save_exported(Heavy(megabytes), folder, config, (2, 16), torch_dtype(DataType.FP32), count=2)


class CompiledFormat(PyTorchFormat):
    """Compiling takes long, so it is done once for all tests."""

    name = "torch_aoti"
    packages = ("torch",)
    example = "torch_compiled_format"
    models = frozenset({"add_sub", "image"})
    no_text = "PyTorch has no strings here"
    is_slow = True

    def call(self, path: Path) -> Any:
        """Its arguments are keywords, and the configuration has them in their order."""
        import torch

        package = torch._inductor.aoti_load_package(str(path))
        config = parse_pbtxt((path.parents[1] / "config.pbtxt").read_text(), source="")
        names = [entry.name for entry in config.input]
        return lambda *arguments: package(**dict(zip(names, arguments, strict=True)))

    def rows_model(self, folder: Path) -> None:
        self.example_model("add_sub", folder)

    def example_model(self, model: str, folder: Path) -> None:
        shutil.copytree(compiled(model, self.run_folder), folder)


class ModuleFormat(PyTorchFormat):
    """A module in a `model.py`, run by workers."""

    name = "torch_module"
    example = "torch_module_format"
    models = frozenset({"image"})
    no_text = "The runtime takes no strings"
    missing = "No model found in"
    broken = "invalid non-printable character"
    framework: ClassVar[tuple[str, ...]] = ()
    install = ""
    is_slow = True

    def backend_class(self) -> type[Backend]:
        return BackendRegistry().find(self.backend, model="m", is_python_based=True)

    def rows_model(self, folder: Path) -> None:
        self.example_model("image", folder)

    def call(self, path: Path) -> Any:
        return load_example("formats/pytorch_format").Network()


# In a process of its own: the compiler sets up a great deal, and warns of some of it.
COMPILE = """
import pathlib, sys, torch_compiled_format
getattr(torch_compiled_format, sys.argv[1])(pathlib.Path(sys.argv[2]))
"""


def compiled(model: str, run_folder: Path) -> Path:
    """The folder of an example's model, compiled."""
    if not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("models of AOTInductor are made with a C++ compiler, and none is installed")
    folder = run_folder / f"torch_aoti_{model}"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = Path(f"{folder}.unfinished")
            command = [sys.executable, "-c", COMPILE, model, str(unfinished)]
            subprocess.run(command, check=True, capture_output=True, text=True, cwd=EXAMPLES / "formats")
            unfinished.rename(folder)
    return folder


def _value(array: Any) -> Any:
    import torch

    return [each.decode() for each in array.reshape(-1)] if array.dtype == np.object_ else torch.from_numpy(array)


def _array(value: Any) -> Any:
    if isinstance(value, list):
        found = np.empty(len(value), np.object_)
        found[:] = [each.encode() for each in value]
        return found.reshape(-1, 1)
    return value.numpy()
