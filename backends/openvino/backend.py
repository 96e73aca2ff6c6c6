"""The openvino backend: one compiled model for all instances, and one inference request for each.

The library releases the GIL while it runs. Devices other than the CPU have not been seen running.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
import openvino
import trio
from numpy.typing import NDArray

from backends.array_backend import ArrayBackend
from backends.interface import InstanceSpec, ModelSource
from backends.openvino.errors import load_errors, run_errors
from backends.openvino.model_file import ModelTensors, describe, read_model, with_datatypes
from backends.openvino.options import CPU, OpenVinoOptions, read_options
from backends.signature_backend import Signature, default_max_batch_size
from protocol.errors import InvalidArgument, Unavailable
from repository.completion import check_against_model, complete_from_model
from repository.model_config import InstanceKind, ModelConfig
from repository.sequence_tensors import hidden_outputs

# Devices made of others, which the library looks for itself.
_COMPOSED = frozenset({"AUTO", "MULTI", "HETERO", "BATCH"})


class OpenVinoBackend(ArrayBackend):
    """Runs OpenVINO IR and what else the library reads; see docs/backends/openvino.md."""

    model_filename = "model.xml"

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._options = OpenVinoOptions()
        self._request: Any = None
        self._is_interrupted = False
        self._has_state = False
        self._inputs: dict[str, int] = {}
        self._outputs: dict[str, int] = {}
        self._scalars: frozenset[str] = frozenset()
        self._scalar_dims = {entry.name: entry.backend_dims for entry in spec.config.output}

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Inputs and outputs from the file; batching only where the tensors' layouts say so, as in Triton. Cancelled:
        leaves the reading to its thread."""
        config = source.config
        if config.input and config.output:
            return config
        found = await trio.to_thread.run_sync(cls._declared, source, abandon_on_cancel=True)
        can_batch = found.has_batch_layout and not read_options(config).skips_dynamic_batch
        rows = max(default_max_batch_size(source), 1) if can_batch else 0
        return complete_from_model(config, inputs=found.inputs, outputs=found.outputs, default_max_batch_size=rows)

    @classmethod
    def signature(cls, source: ModelSource) -> Signature | None:
        found = cls._declared(source)
        return found.inputs, found.outputs

    @classmethod
    def _declared(cls, source: ModelSource) -> ModelTensors:
        options = read_options(source.config)
        return describe(read_model(_core_for(source, options), source, options), source.config, options)

    def load_model(self) -> None:
        source, config = self.spec.source, self.spec.config
        if self.spec.kind is not InstanceKind.CPU:
            raise InvalidArgument(
                f"unable to load model '{source.name}', Triton OpenVINO backend supports only Kind CPU and AUTO; "
                f"the parameter 'TARGET_DEVICE' picks other devices of Intel"
            )
        self._options = read_options(config)
        # One for all instances on the same cores; the first makes it.
        key = f"openvino {sorted(self.spec.cpu_cores)}"
        shared = source.shared.setdefault(key, _Shared())
        assert isinstance(shared, _Shared)
        with shared.lock:
            if shared.compiled is None:
                shared.compiled, shared.tensors = self._compile()
        tensors = shared.tensors
        with load_errors(source.name, "making an inference request"):
            self._request = shared.compiled.create_infer_request()
            self._has_state = bool(self._request.query_state())
        positions = {tensor.name: index for index, tensor in enumerate(tensors.outputs)}
        wanted = (*config.output, *hidden_outputs(config))
        self._inputs = {tensor.name: index for index, tensor in enumerate(tensors.inputs)}
        self._outputs = {entry.name: positions[entry.name] for entry in wanted}
        self._scalars = tensors.scalars

    def _compile(self) -> tuple[Any, ModelTensors]:
        source, options = self.spec.source, self._options
        core = _core_for(source, options)
        model = read_model(core, source, options)
        tensors = describe(model, source.config, options)
        check_against_model(source.config, tensors.inputs, tensors.outputs)
        properties = dict(options.properties)
        if self.spec.cpu_cores and options.device == CPU:
            properties.setdefault("INFERENCE_NUM_THREADS", len(self.spec.cpu_cores))
        with load_errors(source.name, "loading model"):
            return core.compile_model(with_datatypes(model, tensors), options.device, properties), tensors

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        rows = self._rows(inputs)
        feed = {self._inputs[name]: self._fed(name, array, rows) for name, array in inputs.items()}
        with run_errors(self.spec.source.name):
            if self._has_state:  # what a model keeps for itself is not for the next caller
                self._request.reset_state()
            self._infer(feed)
            # The request's own memory is written to by its next run.
            outputs = {name: self._request.get_output_tensor(i).data.copy() for name, i in self._outputs.items()}
        for name in self._scalars & outputs.keys():
            outputs[name] = outputs[name].reshape(self._scalar_dims.get(name, (1,)))
        return outputs

    def _infer(self, feed: dict[int, NDArray[Any]]) -> None:
        if self.spec.cpu_cores:
            # In this thread, which is bound to its cores; the library's own are not. A run that is interrupted just
            # before it begins goes on to its end.
            self._request.infer(feed, share_inputs=True, share_outputs=True)
            return
        self._request.start_async(feed, share_inputs=True)
        if self._is_interrupted:  # before it began, when there was nothing to cancel
            self._request.cancel()
        self._request.wait()

    def _rows(self, inputs: dict[str, NDArray[Any]]) -> int | None:
        """The number of rows to fill the batch up to; None where it is to stay as it is.

        Raises:
            InvalidArgument: the model takes another number, and may not be filled up.
        """
        config = self.spec.config
        if not (self._options.has_fixed_batch and config.is_batching and inputs):
            return None
        rows = len(next(iter(inputs.values())))
        if rows != config.max_batch_size and not self._options.pads_batches:
            raise InvalidArgument(
                f"expected requests with batch size '{config.max_batch_size}', got '{rows}'... this error can be "
                f"avoided by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance "
                f"cost. (model '{config.name}')"
            )
        return config.max_batch_size

    def _fed(self, name: str, array: NDArray[Any], rows: int | None) -> NDArray[Any]:
        if name in self._scalars:
            return array.reshape(()).copy()  # the library takes no scalars from memory that is read only
        if rows is None or len(array) == rows:
            return array
        padded = np.zeros((rows, *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        return padded

    def interrupt(self) -> None:
        """The library ends the run before the next operator."""
        self._is_interrupted = True
        self._request.cancel()

    def resume(self) -> None:
        self._is_interrupted = False

    def close_model(self) -> None:
        self._request = None


class _Shared:
    """A compiled model, which several instances have in common."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.compiled: Any = None
        self.tensors = ModelTensors((), (), False)


@cache
def _core() -> Any:
    return openvino.Core()


def _core_for(source: ModelSource, options: OpenVinoOptions) -> Any:
    """The library as this model needs it: with its extension, if it has one, and with its device.

    Raises:
        Unavailable: this machine has no such device.
        InvalidArgument: the device lacks a property that the configuration sets.
    """
    core = _core()
    if options.extension:
        core = openvino.Core()
        with load_errors(source.name, f"loading the extension '{options.extension}'"):
            core.add_extension(options.extension)
    kind = options.device.partition(":")[0].partition(".")[0]
    if kind in _COMPOSED:
        return core
    if options.device != CPU:
        available = core.available_devices
        if kind not in {name.partition(".")[0] for name in available}:
            raise Unavailable(
                f"model '{source.name}', parameter 'TARGET_DEVICE': OpenVINO finds no device {options.device} here; "
                f"it has {', '.join(available)}"
            )
    with load_errors(source.name, "asking the device"):
        known = core.get_property(options.device, "SUPPORTED_PROPERTIES")
    for key in options.properties:
        if key not in known:
            raise InvalidArgument(
                f"model '{source.name}', parameter '{key}': OpenVINO {openvino.__version__} has no such property "
                f"for device {options.device}; leave it out"
            )
    return core
