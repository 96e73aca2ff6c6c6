"""The jax backend: an exported function, compiled per input shape, shared by the instances on a device.

The library releases the GIL while it compiles and while it runs. Devices other than the CPU have not been seen running.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
import trio
from numpy.typing import NDArray

from backends.array_backend import ArrayBackend
from backends.devices.batch import reshaped
from backends.interface import InstanceSpec, ModelSource
from backends.jax.binding import Binding
from backends.jax.device import CPU
from backends.jax.device_arrays import array_of, stream_of, tensors_of
from backends.jax.errors import load_errors, run_errors
from backends.jax.exported import MODEL_FILE, ExportedFunction
from backends.jax.loaded_function import LoadedFunction, SharedFunction, load_function
from backends.jax.options import read_batch_rule, read_options
from backends.jax.process_settings import PROCESS_SETTINGS, read_settings
from backends.jax.shapes import can_batch
from backends.jax.weights import read_weights
from backends.naming import all_outputs
from backends.signature_backend import Signature, default_max_batch_size
from protocol.core import MemoryUsage
from repository.completion import complete_from_model
from repository.model_config import ModelConfig
from repository.shape_rules import DimRule


class JaxBackend(ArrayBackend):
    """Runs functions that `jax.export` has serialized; see docs/backends/jax.md."""

    model_filename = MODEL_FILE
    alignment = 64  # what the library takes as it lies, and does not copy
    takes_device_tensors = True
    prefers_gpu = any(find_spec(f"jax_{plugin}_plugin") for plugin in ("cuda12", "cuda13", "rocm60", "rocm7"))

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._loaded: LoadedFunction | None = None
        self._outputs = all_outputs(spec.config)

    @classmethod
    def batch_rule(cls, config: ModelConfig) -> DimRule | None:
        return read_batch_rule(config)

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Inputs and outputs from the file; batching where the first dimension of all of them is the same symbol.
        Cancelled: leaves the reading to its thread."""
        config = source.config
        if config.input and config.output:
            return config
        function = await trio.to_thread.run_sync(ExportedFunction, source, abandon_on_cancel=True)
        inputs, outputs = function.signature()
        rows = default_max_batch_size(source) if can_batch(function.inputs, function.outputs) else 0
        return complete_from_model(config, inputs=inputs, outputs=outputs, default_max_batch_size=rows)

    @classmethod
    def signature(cls, source: ModelSource) -> Signature | None:
        return ExportedFunction(source).signature()

    @classmethod
    async def check_model(cls, source: ModelSource) -> None:
        """Compare the configuration with the file. Devices are not looked for."""
        await trio.to_thread.run_sync(cls._check, source, abandon_on_cancel=True)

    @classmethod
    def _check(cls, source: ModelSource) -> None:
        read_options(source.config)
        read_batch_rule(source.config)
        read_settings(source.settings)
        function = ExportedFunction(source)
        Binding(source.config, function)
        read_weights(function, model=source.name)

    def load_model(self) -> None:
        spec, source = self.spec, self.spec.source
        options, settings = read_options(spec.config), read_settings(source.settings)

        def load() -> LoadedFunction:
            with load_errors(source.name, "looking for devices"):
                PROCESS_SETTINGS.apply(settings, source.name)
            return load_function(spec, options, self.batch_rule(spec.config))

        self._loaded = self._shared().enter(load)
        self.device_stream = stream_of(spec, self._loaded.device)

    def _shared(self) -> SharedFunction:
        """The one of all instances on the device."""
        key = f"jax {self.spec.kind.value} {self.spec.device_id}"
        shared = self.spec.source.shared.setdefault(key, SharedFunction())
        assert isinstance(shared, SharedFunction)
        return shared

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        loaded = self._loaded
        assert loaded is not None
        binding = loaded.binding
        scalars = binding.scalar_inputs
        arrays: list[Any] = [reshaped(inputs[name], ()) if name in scalars else inputs[name] for name in binding.inputs]
        shapes = tuple(array.shape for array in arrays)
        stream = self.device_stream
        with run_errors(self.spec.source.name, shapes), jax.enable_x64(True):
            executable = loaded.executables.get(shapes)
            if stream is not None:
                stream.synchronize()
                arrays = [array_of(array, loaded.device) for array in arrays]
            results = executable(*loaded.weights, *arrays)
            found = {entry.name: result for entry, result in zip(self._outputs, results, strict=True)}
            outputs: dict[str, Any]
            if stream is not None:
                outputs = dict(tensors_of(found, stream))
            else:
                for result in results if loaded.device.platform != CPU else ():
                    result.copy_to_host_async()  # all at once, before the first is waited for
                outputs = {name: np.asarray(result) for name, result in found.items()}
        for entry in self._outputs:
            if entry.name in binding.scalar_outputs:
                outputs[entry.name] = reshaped(outputs[entry.name], entry.backend_dims)
        return outputs

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """The weights of a file of their own, which all instances on a device share; of what a program holds the
        library does not tell."""
        loaded = self._loaded
        size = 0 if loaded is None else sum(int(weight.nbytes) for weight in loaded.weights)
        if loaded is None or not size:
            return ()
        is_host = loaded.device.platform == CPU
        return (MemoryUsage("CPU" if is_host else "GPU", 0 if is_host else self.spec.device_id, size),)

    def close_model(self) -> None:
        self._loaded = None
        self.device_stream = None
        self._shared().leave()
