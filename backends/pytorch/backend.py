"""The pytorch backend: one program per instance, called from its own thread.

The library releases the GIL inside its operators; a TorchScript or compiled model runs without it from end to end.
Instances on a GPU have not been seen running.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trio
from numpy.typing import NDArray

from backends.array_backend import ArrayBackend
from backends.interface import InstanceSpec, ModelSource
from backends.naming import Slot, all_outputs
from backends.pytorch.binding import Binding, bind, output_positions
from backends.pytorch.compiled import CompiledProgram
from backends.pytorch.device import Device, device_of
from backends.pytorch.errors import load_errors, run_errors
from backends.pytorch.exported import ExportedProgram
from backends.pytorch.model_file import FileKind, kind_of, model_path
from backends.pytorch.options import COMPILE, TorchOptions, read_options
from backends.pytorch.process_settings import PROCESS_SETTINGS
from backends.pytorch.program import Program, Results
from backends.pytorch.torchscript import TorchScriptProgram
from backends.pytorch.values import DTYPES, Value, text_array, texts
from backends.signature_backend import Signature
from protocol.core import MemoryUsage
from protocol.errors import Internal, InvalidArgument, Unsupported
from repository.model_config import InstanceKind, ModelOutput


class PyTorchBackend(ArrayBackend):
    """Runs TorchScript, `torch.export` and AOTInductor files; see docs/backends/pytorch.md."""

    prefers_gpu = torch.version.cuda is not None
    text_strings = True  # the library's Python interface takes text only
    takes_device_tensors = True

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._options = TorchOptions()
        self._device = Device()
        self._program: Program | None = None
        self._binding = Binding((), {})
        self._outputs = all_outputs(spec.config)
        # The results that a run gives, and where among them the outputs are.
        self._found: tuple[tuple[Slot, ...], list[int]] | None = None
        self._own_memory: frozenset[int] = frozenset()
        self._held = MemoryUsage("CPU", 0, 0)

    @classmethod
    def signature(cls, source: ModelSource) -> Signature | None:
        """Only exported programs tell theirs."""
        path = model_path(source)
        kind = kind_of(path, model=source.name)
        config = source.config
        if kind is FileKind.EXPORTED:
            with load_errors(source.name):
                return ExportedProgram(path, torch.device("cpu"), None).signature()
        missing = "input" if not config.input else "output"
        with load_errors(source.name):
            known = ""
            if kind is FileKind.SCRIPT:
                slots = TorchScriptProgram(path, torch.device("cpu")).input_slots(())
                known = f"; its inputs are called {', '.join(slot.name for slot in slots)}" if slots else ""
        raise InvalidArgument(
            f"model '{source.name}': model configuration must contain at least one {missing}, none were specified. "
            f"Files of {kind.value} do not tell datatypes and shapes{known}"
        )

    @classmethod
    async def check_model(cls, source: ModelSource) -> None:
        """Compare the configuration with what the file tells. A compiled model is not opened: it may be for a device
        that is not here."""
        await trio.to_thread.run_sync(cls._check, source, abandon_on_cancel=True)

    @classmethod
    def _check(cls, source: ModelSource) -> None:
        kind = _read_kind(source, read_options(source.config))
        if kind is FileKind.COMPILED:
            return
        with load_errors(source.name):
            program = _open_program(model_path(source), kind, Device())
        bind(source.config, program)
        results = program.output_slots()
        if results is not None:
            output_positions(source.config, program, results)

    def load_model(self) -> None:
        source, config = self.spec.source, self.spec.config
        self._options = read_options(config)
        kind = _read_kind(source, self._options)
        self._device = device_of(self.spec)
        self.device_stream = self._device.stream
        PROCESS_SETTINGS.apply(self._options.process, source.name)
        with load_errors(source.name), self._computing():
            program = self._shared_program(kind) if self._options.shares_weights else self._open(kind)
        self._binding = bind(config, program)
        results = program.output_slots()
        if results is not None:
            self._found = results, output_positions(config, program, results)
        self._measure(program)
        self._program = program

    def _open(self, kind: FileKind) -> Program:
        return _open_program(model_path(self.spec.source), kind, self._device, self._options.compile)

    def _shared_program(self, kind: FileKind) -> Program:
        """The one of all instances on this device; the first loads it."""
        key = f"pytorch {self.spec.kind.value} {self.spec.device_id}"
        shared = self.spec.source.shared.setdefault(key, _Shared())
        assert isinstance(shared, _Shared)
        with shared.lock:
            if shared.program is None:
                shared.program = self._open(kind)
            return shared.program

    def _measure(self, program: Program) -> None:
        storages = {each.untyped_storage().data_ptr(): each for each in program.tensors()}
        self._own_memory = frozenset(storages)
        size = sum(each.untyped_storage().nbytes() for each in storages.values())
        is_gpu = self.spec.kind is InstanceKind.GPU
        self._held = MemoryUsage("GPU" if is_gpu else "CPU", self.spec.device_id if is_gpu else 0, size)

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """Parameters, buffers and constants; of compiled models the library does not tell."""
        return (self._held,) if self._held.byte_size else ()

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        program = self._program
        assert program is not None
        with run_errors(self.spec.source.name), self._computing():
            binding = self._binding
            values: list[Value | None] = [None] * len(binding.slots)
            for name, array in inputs.items():
                is_text = isinstance(array, np.ndarray) and array.dtype == np.object_
                values[binding.inputs[name]] = texts(array) if is_text else self._device.tensor(array)
            outputs = self._arrays(program, program.run(binding.slots, values))
            self._device.synchronize()
        if self._options.cleans_cache:
            self._device.clean()
        return outputs

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """What holds for loading and running, in the instance's thread."""
        options = self._options
        with ExitStack() as stack:
            stack.enter_context(self._device.computing())
            if options.is_inference:
                stack.enter_context(torch.inference_mode())
            if options.autocast is not None:
                kind = "cuda" if self.spec.kind is InstanceKind.GPU else "cpu"
                stack.enter_context(torch.autocast(kind, options.autocast))
            if not options.is_optimized:
                stack.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
            yield

    def _arrays(self, program: Program, results: Results) -> dict[str, NDArray[Any]]:
        if self._found is None or self._found[0] != results.slots:
            self._found = results.slots, output_positions(self.spec.config, program, results.slots)
        arrays: dict[str, NDArray[Any]] = {}
        tensors: dict[str, torch.Tensor] = {}
        for entry, position in zip(self._outputs, self._found[1], strict=True):
            value = results.values[position]
            if isinstance(value, torch.Tensor):
                tensors[entry.name] = self._checked(entry, value)
            else:
                arrays[entry.name] = text_array(value)
        arrays.update(self._device.results(tensors))
        return arrays

    def _checked(self, entry: ModelOutput, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in memory that the model does not write to again, in the precision that is configured."""
        if tensor.dim() == 0:
            dims = entry.dims if entry.reshape is None else entry.reshape.shape
            if self.spec.config.is_batching or any(dim != 1 for dim in dims):
                raise Unsupported(
                    f"output '{entry.name}' is a scalar which is not supported. (model '{self.spec.source.name}')"
                )
            tensor = tensor.reshape(dims)
        if tensor.is_sparse or tensor.is_quantized:
            raise Internal(f"output '{entry.name}' is no dense tensor (model '{self.spec.source.name}')")
        wanted = DTYPES.get(entry.data_type)
        if self._options.autocast is not None and wanted is not None and tensor.is_floating_point():
            tensor = tensor.to(wanted)
        # What is compiled may run as a CUDA graph, which gives the same memory each time.
        is_reused = self._options.compile is not None and tensor.is_cuda
        if is_reused or tensor.untyped_storage().data_ptr() in self._own_memory:
            tensor = tensor.clone()
        return tensor

    def close_model(self) -> None:
        self._program = None
        self._found = None
        self._own_memory = frozenset()
        self._held = MemoryUsage("CPU", 0, 0)
        self._device.clean()
        self.device_stream = None


def _open_program(path: Path, kind: FileKind, device: Device, compile: dict[str, Any] | None = None) -> Program:
    if kind is FileKind.SCRIPT:
        return TorchScriptProgram(path, device.map_location)
    if kind is FileKind.EXPORTED:
        return ExportedProgram(path, device.map_location, compile)
    return CompiledProgram(path, device.compiled_index)


def _read_kind(source: ModelSource, options: TorchOptions) -> FileKind:
    """Raises InvalidArgument where the options are not for such a file."""
    kind = kind_of(model_path(source), model=source.name)
    if options.compile is not None and kind is not FileKind.EXPORTED:
        raise InvalidArgument(
            f"model '{source.name}', parameter '{COMPILE}': only models of torch.export and those with runtime "
            f"\"model.py\" can be compiled, and '{model_path(source).name}' is of {kind.value}"
        )
    return kind


class _Shared:
    """A program that several instances have in common."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.program: Program | None = None
