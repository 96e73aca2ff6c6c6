"""The tensorrt backend. What it does on a GPU has not been seen running."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import trio
from numpy.typing import NDArray

from backends.array_backend import ArrayBackend
from backends.devices.batch import reshaped
from backends.interface import InstanceDied, InstanceSpec, ModelSource
from backends.requirements import INSTALL_TENSORRT, framework_missing
from backends.tensorrt.compatibility import check_compatible
from backends.tensorrt.completion import complete_from_engine
from backends.tensorrt.description import EngineDescription
from backends.tensorrt.options import dla_core, read_options
from backends.tensorrt.profiles import group_profiles, profile_indices
from protocol.core import MemoryUsage
from protocol.errors import InvalidArgument, Overloaded, Unavailable
from repository.model_config import InstanceKind, ModelConfig
from repository.sequence_tensors import hidden_outputs
from repository.shape_rules import DimRule

if TYPE_CHECKING:  # TensorRT is imported by the first load
    from backends.tensorrt.engines import Engines, LoadedEngine
    from backends.tensorrt.execution import Execution


class TensorRTBackend(ArrayBackend):
    """Runs TensorRT's engines; see docs/backends/tensorrt.md."""

    prefers_gpu = True
    model_filename = "model.plan"
    takes_device_tensors = True

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._engines: Engines | None = None
        self._loaded: LoadedEngine | None = None
        self._execution: Execution | None = None
        # A shape tensor has its batch as first value, which is not the client's.
        self._led_outputs = frozenset(
            entry.name for entry in spec.config.output if entry.is_shape_tensor and spec.config.is_batching
        )
        self._dims = {entry.name: entry.backend_dims for entry in spec.config.output}

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Tensor by tensor from the engine, which is read on the first group's GPU. Cancelled: leaves the reading to
        its thread."""
        config = source.config
        if not _is_on_gpu(config):
            raise _needs_gpu(source.name)
        found = await trio.to_thread.run_sync(cls._describe, source, abandon_on_cancel=True)
        return complete_from_engine(config, found, group_profiles(config, found))

    @classmethod
    async def check_model(cls, source: ModelSource) -> None:
        """Compare the configuration with the engine, which only a GPU can read."""
        read_options(source.config, source.settings)
        if not _is_on_gpu(source.config):
            raise _needs_gpu(source.name)
        found = await trio.to_thread.run_sync(cls._describe, source, abandon_on_cancel=True)
        check_compatible(source.config, found, group_profiles(source.config, found))

    @classmethod
    def _describe(cls, source: ModelSource) -> EngineDescription:
        options = read_options(source.config, source.settings)
        gpus = next((group.gpus for group in source.config.instance_group if group.gpus), (0,))
        try:
            from backends.tensorrt.engines import describe_plan
        except ImportError as error:
            raise framework_missing("tensorrt", model=source.name, error=error) from error
        return describe_plan(source, options, gpus[0])

    def load_model(self) -> None:
        spec = self.spec
        source, config = spec.source, spec.config
        options = read_options(config, source.settings)
        if spec.kind is not InstanceKind.GPU:
            raise _needs_gpu(source.name)
        core = dla_core(spec.secondary_devices, instance=spec.name, model=source.name)
        from backends.tensorrt.engines import engines_of, open_stream, plan_path
        from backends.tensorrt.execution import Execution

        path = plan_path(source)
        stream = open_stream(source, options, spec.device_id)
        engines = engines_of(source, spec.device_id, core)
        with stream.current():
            loaded = engines.acquire(path, options, dla_core=core, model=source.name)
            try:
                description = loaded.description
                profiles = profile_indices(spec.profiles, description, model=source.name)
                check_compatible(config, description, [profiles])
                outputs = [entry.name for entry in (*config.output, *hidden_outputs(config))]
                self._execution = Execution(
                    config, loaded, options, stream, profiles, outputs=outputs, instance=spec.name
                )
            except BaseException:
                engines.release(loaded)
                raise
        self._engines, self._loaded = engines, loaded
        self.device_stream = stream
        if config.is_batching and description.fixed_rows and not _is_ragged(config):
            self._batch_rule = DimRule(multiple=description.fixed_rows)

    def memory_usage(self) -> Sequence[MemoryUsage]:
        execution, loaded = self._execution, self._loaded
        if execution is None or loaded is None:
            return ()
        weights = MemoryUsage("GPU", self.spec.device_id, loaded.weights)
        return (*execution.memory_usage(), *((weights,) if loaded.weights else ()))

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        assert self._execution is not None
        assert self.device_stream is not None
        try:
            with self.device_stream.current():
                outputs = self._execution.run(inputs)
        except Overloaded:
            raise
        except Unavailable as error:
            said = f"model instance '{self.spec.name}' died: its GPU has failed: {error.message}"
            raise InstanceDied(said) from error
        for name in self._led_outputs & outputs.keys():
            outputs[name] = outputs[name][1:]
        for name, value in outputs.items():
            if not value.shape and name in self._dims:  # a scalar is configured as one element
                outputs[name] = reshaped(value, self._dims[name])
        return outputs

    def close_model(self) -> None:
        assert self._engines is not None
        assert self._loaded is not None
        assert self.device_stream is not None
        with self.device_stream.current():
            self._execution = None  # contexts before their engine
            self._engines.release(self._loaded)
            self._engines = self._loaded = None
        self.device_stream = None


def _is_ragged(config: ModelConfig) -> bool:
    return bool(config.batch_input) or any(entry.allow_ragged_batch for entry in config.input)


def _is_on_gpu(config: ModelConfig) -> bool:
    return bool(config.instance_group) and config.instance_group[0].kind is InstanceKind.GPU


def _needs_gpu(model: str) -> InvalidArgument:
    return InvalidArgument(
        f"unable to load model '{model}', TensorRT backend supports only GPU device: give its instance_group "
        f"kind: KIND_GPU, on a machine with an NVIDIA GPU and its driver ({INSTALL_TENSORRT})"
    )
