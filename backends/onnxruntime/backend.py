"""The onnxruntime backend: one session per instance, called from its own thread.

The library releases the GIL while it runs. The CUDA and TensorRT providers are wired as its documentation says, but
have not been seen running.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import trio
from numpy.typing import NDArray

from backends.array_backend import ArrayBackend
from backends.devices.batch import reshaped
from backends.devices.stream import DeviceStream
from backends.interface import InstanceSpec, ModelSource
from backends.onnxruntime.cuda_libraries import load_libraries
from backends.onnxruntime.device_run import DeviceRun
from backends.onnxruntime.errors import load_errors, run_errors
from backends.onnxruntime.held_states import HeldStates, held_states
from backends.onnxruntime.options import OnnxRuntimeOptions, read_options, run_options, session_options
from backends.onnxruntime.ort_values import run_with_values
from backends.onnxruntime.providers import (
    CPU,
    Provider,
    check_started,
    is_gpu_package_installed,
    on_stream,
    providers_for,
)
from backends.onnxruntime.signature import ModelSignature, read_signature
from backends.signature_backend import Signature
from protocol.datatypes import DataType
from protocol.errors import Unavailable, Unsupported
from protocol.messages import InferenceRequest, Tensor
from repository.completion import check_against_model
from repository.model_config import InstanceKind
from repository.sequence_tensors import hidden_outputs

logger = logging.getLogger("trioton.devices")

MODEL_FILE = "model.onnx"


class OnnxRuntimeBackend(ArrayBackend):
    """Runs ONNX (and ORT-format) models; see docs/backends/onnxruntime.md."""

    default_cpu_instance_count = 2
    prefers_gpu = is_gpu_package_installed()
    text_strings = True  # the library's Python interface takes text only
    takes_device_tensors = True

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._session: Any = None
        self._run_options: Any = None
        self._outputs = (*spec.config.output, *hidden_outputs(spec.config))
        self._output_names = [entry.name for entry in self._outputs]
        self._scalars: frozenset[str] = frozenset()
        self._has_bf16 = False
        self._states: HeldStates | None = None
        self._device_run: DeviceRun | None = None

    @classmethod
    def signature(cls, source: ModelSource) -> Signature | None:
        return cls._declared(source).for_completion(source.config)

    @classmethod
    async def check_model(cls, source: ModelSource) -> None:
        for group in source.config.instance_group:
            spec = InstanceSpec(source, group.name, group.kind, next(iter(group.gpus), 0))
            providers_for(spec, onnxruntime.get_available_providers())
        found = await trio.to_thread.run_sync(cls._declared, source, abandon_on_cancel=True)
        check_against_model(source.config, found.inputs, found.outputs)

    @classmethod
    def _declared(cls, source: ModelSource) -> ModelSignature:
        # A session that is only looked at needs no pool and no GPU. It must optimise as the instances' will: folding
        # constants sharpens the shapes of outputs, which are compared exactly when an instance loads.
        options = replace(read_options(source.config), intra_op_thread_count=1, is_parallel=False)
        path = model_path(source)
        session = _open_session(source.name, path, options, [(CPU, {})])
        return read_signature(session, path, source.config)

    def load_model(self) -> None:
        source, config = self.spec.source, self.spec.config
        options = read_options(config)
        if self.spec.cpu_cores and not options.intra_op_thread_count:
            # Left to itself the library makes a thread for each core of the machine, and binds it to that core. Threads
            # of a given number are not bound by it: they inherit the cores of this thread.
            options = replace(options, intra_op_thread_count=len(self.spec.cpu_cores))
        providers = providers_for(self.spec, onnxruntime.get_available_providers(), options.intra_op_thread_count)
        stream = self._new_stream()
        if stream is not None:
            providers = on_stream(providers, stream.number)
        path = model_path(source)
        load_libraries(providers)
        session = _open_session(source.name, path, options, providers)
        check_started(self.spec, providers, session.get_providers())
        found = read_signature(session, path, config)
        check_against_model(config, found.inputs, found.outputs)
        self._has_bf16 = _uses_bf16(source.name, found)
        self._session = session
        self._run_options = run_options(options)
        self._scalars = found.scalars
        if stream is not None:
            self.device_stream = stream
            self._device_run = DeviceRun(session, stream, self._output_names, self._run_options)
        elif self._padding is None and self._batch_rule is None:
            self._hold_states()

    def _new_stream(self) -> DeviceStream | None:
        """None where tensors come and go through the host: on the CPU, without cupy, where states are held, and for
        models that take strings, of which the library's Python interface makes no values."""
        config = self.spec.config
        has_states = config.sequence_batching is not None and bool(config.sequence_batching.state)
        has_strings = any(entry.data_type is DataType.BYTES for entry in config.input)
        if self.spec.kind is not InstanceKind.GPU or has_states or has_strings:
            return None
        try:
            return self.spec.source.devices.stream(self.spec.device_id, self.spec.config)
        except Unavailable as error:
            logger.info("model instance '%s': onnxruntime copies tensors by itself: %s", self.spec.name, error)
            return None

    def _hold_states(self) -> None:
        states = held_states(self.spec, self._session, self._output_names, self._run_options)
        if states is not None:
            self._states = states
            self.held_inputs, self.held_outputs = states.inputs, states.state_outputs

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        feed = self._feed(inputs)
        with run_errors(self.spec.source.name):
            if self._device_run is not None:
                return self._shaped(self._device_run.run(feed))
            if self._has_bf16:
                arrays = run_with_values(self._session, self._output_names, feed, self._run_options)
            else:
                arrays = self._session.run(self._output_names, feed, self._run_options)
        return self._shaped(dict(zip(self._output_names, arrays, strict=True)))

    def run_holding(
        self, inputs: dict[str, NDArray[Any]], requests: Sequence[InferenceRequest]
    ) -> tuple[dict[str, NDArray[Any]], Sequence[Sequence[Tensor]]]:
        assert self._states is not None
        with run_errors(self.spec.source.name):
            outputs, states = self._states.run(self._feed(inputs), requests)
        return self._shaped(outputs), states

    def _feed(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if not self._scalars:
            return inputs
        return {name: reshaped(array, ()) if name in self._scalars else array for name, array in inputs.items()}

    def _shaped(self, outputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        for entry in self._outputs if self._scalars else ():
            if entry.name in self._scalars and entry.name in outputs:
                outputs[entry.name] = reshaped(outputs[entry.name], entry.backend_dims)
        return outputs

    def interrupt(self) -> None:
        """The library ends the run before the next operator, or the next round of a loop."""
        self._run_options.terminate = True

    def resume(self) -> None:
        self._run_options.terminate = False

    def close_model(self) -> None:
        self._session = None
        self._states = None
        self._device_run = None
        self.device_stream = None


def model_path(source: ModelSource) -> Path:
    """The model's file: the default model file, or `model.onnx` in it if that is a directory (with external weights).

    Raises:
        Unavailable: there is no such file.
    """
    named = source.version_directory / (source.config.default_model_filename or MODEL_FILE)
    path = named / MODEL_FILE if named.is_dir() else named
    if not path.is_file():
        raise Unavailable(f"unable to find '{path}' for model instance '{source.name}'")
    return path


def _open_session(model: str, path: Path, options: OnnxRuntimeOptions, providers: Sequence[Provider]) -> Any:
    with load_errors(model):
        # Without fallback: a provider that cannot start is an error, not a slower model.
        return onnxruntime.InferenceSession(
            str(path), session_options(options), providers=list(providers), enable_fallback=0
        )


def _uses_bf16(model: str, signature: ModelSignature) -> bool:
    inputs = {tensor.data_type for tensor in signature.inputs}
    used = inputs | {tensor.data_type for tensor in signature.outputs}
    if DataType.BF16 in used and DataType.BYTES in inputs:
        raise Unsupported(
            f"model '{model}' has string inputs beside BF16 tensors, which onnxruntime's Python interface cannot run"
        )
    return DataType.BF16 in used
