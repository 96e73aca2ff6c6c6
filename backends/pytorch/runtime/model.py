"""Serves a `torch.nn.Module` defined in a `model.py`, with its weights in a file beside it.

Runs in the workers of the python backend, under the model's own interpreter, for models with `backend: "pytorch"` and
`runtime: "model.py"`. Source: the Python runtime of Triton's pytorch backend.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
from typing import Any

import triton_python_backend_utils as pb_utils

INSTALL = "the torch package: pip install 'trioton[torch]', or into the model's own environment"
COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
AUTOCAST = "AUTOCAST_DTYPE"
AUTOCAST_DTYPES = {"FP16": "float16", "BF16": "bfloat16"}
FLOATS = {"TYPE_FP16": "float16", "TYPE_BF16": "bfloat16", "TYPE_FP32": "float32", "TYPE_FP64": "float64"}
COMPILE_KEYS = ("backend", "disable", "dynamic", "fullgraph", "mode", "options")
FILES = ("model.py", "model.pt")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.name = args["model_name"]
        try:
            import torch
        except ImportError as error:
            raise pb_utils.TritonModelException(f"model '{self.name}' needs {INSTALL} ({error})") from None
        self.torch: Any = torch
        self.parameters = {key: value.get("string_value", "") for key, value in config.get("parameters", {}).items()}
        torch.set_num_threads(self._count("NUM_THREADS"))
        torch.set_num_interop_threads(self._count("NUM_INTEROP_THREADS"))
        for tensor in (*config["input"], *config["output"]):
            if tensor["data_type"] == "TYPE_STRING":
                raise self._refused(f"tensor '{tensor['name']}' has datatype TYPE_STRING, which modules do not take")
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self.floats = [getattr(torch, FLOATS.get(tensor["data_type"], ""), None) for tensor in config["output"]]
        self.autocast = self._autocast()
        self.is_batching = config.get("max_batch_size", 0) > 0
        kind = args["model_instance_kind"]
        if kind == "GPU" and not torch.cuda.is_available():
            raise self._refused(f"its instance has KIND_GPU, but the installed torch {torch.__version__} sees no GPU")
        self.device: Any = torch.device("cuda", int(args["model_instance_device_id"])) if kind == "GPU" else None
        if kind == "CPU":
            self.device = torch.device("cpu")
        self.module = self._load(config.get("default_model_filename", ""))
        if self.device is None:  # KIND_MODEL: where the module has put itself
            parameter = next(self.module.parameters(), None)
            if parameter is None:
                raise self._refused("Cannot determine model device")
            self.device = parameter.device

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request. Those that fail together are run again one by one."""
        if not self.is_batching:
            return [self._run([request])[0] for request in requests]
        groups: dict[tuple[str, ...], list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(tuple(tensor.name() for tensor in request.inputs()), []).append(index)
        responses: list[Any] = [None] * len(requests)
        for indices in groups.values():
            for index, response in zip(indices, self._run([requests[index] for index in indices])):
                responses[index] = response
        return responses

    def _run(self, requests: list[Any]) -> list[Any]:
        try:
            with self.torch.inference_mode():
                return self._answers(requests)
        except Exception as error:
            if len(requests) > 1:
                return [self._run([request])[0] for request in requests]
            text = f"PyTorch execute failure: {type(error).__name__}: {error} (model '{self.name}')"
            code = pb_utils.TritonError.UNAVAILABLE if self._is_out_of_memory(error) else pb_utils.TritonError.INTERNAL
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))]

    def _is_out_of_memory(self, error: Exception) -> bool:
        """Of a device, or of the host."""
        is_said = "DefaultCPUAllocator:" in str(error)
        return is_said or isinstance(error, (MemoryError, self.torch.cuda.OutOfMemoryError))

    def _answers(self, requests: list[Any]) -> list[Any]:
        given = [{tensor.name(): self.torch.from_dlpack(tensor) for tensor in each.inputs()} for each in requests]
        arguments: list[Any] = []
        for name in self.inputs:
            tensors = [each[name] for each in given if name in each]
            if not tensors:  # optional, and left out
                arguments.append(None)
                continue
            joined = self.torch.cat(tensors) if len(tensors) > 1 else tensors[0]
            arguments.append(joined.to(self.device))
        if self.autocast is None:
            found = self.module(*arguments)
        else:
            with self.torch.autocast(self.device.type, self.autocast):
                found = self.module(*arguments)
        if isinstance(found, dict):
            found = [found[name] for name in self.outputs]
        elif not isinstance(found, (list, tuple)):
            found = [found]
        if len(found) < len(self.outputs):
            raise ValueError(f"the configuration has {len(self.outputs)} outputs, the module gave {len(found)}")
        if self.autocast is not None:  # floating-point outputs are what the configuration says
            found = [
                tensor if wanted is None or not tensor.is_floating_point() else tensor.to(wanted)
                for tensor, wanted in zip(found, self.floats)
            ]
        results = [tensor.detach().cpu().contiguous() for tensor in found]
        rows = [next(iter(each.values())).shape[0] if self.is_batching else 1 for each in given]
        answers = []
        start = 0
        for count in rows:
            parts = [tensor[start : start + count] if self.is_batching else tensor for tensor in results]
            start += count
            named = [pb_utils.Tensor.from_dlpack(name, part) for name, part in zip(self.outputs, parts)]
            answers.append(pb_utils.InferenceResponse(named))
        return answers

    def _load(self, filename: str) -> Any:
        directory = pb_utils.get_model_dir()
        names = [filename] if filename else list(FILES)
        path = next((path for path in (os.path.join(directory, name) for name in names) if os.path.isfile(path)), "")
        if not path:
            raise self._refused(f"No model found in {directory}/[{', '.join(names)}]")
        module = self._made(path) if path.endswith(".py") else self.torch.jit.load(path, map_location=self.device)
        module.eval()
        if not path.endswith(".py") or COMPILE not in self.parameters:
            return module
        return self.torch.compile(module, **self._compile_parameters())

    def _made(self, path: str) -> Any:
        """An object of the file's class, with the weights that lie beside the file."""
        stem = os.path.splitext(path)[0]
        name = os.path.basename(stem) + "_module"  # this program is called `model` itself
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        file = importlib.util.module_from_spec(spec)
        sys.modules[name] = file
        spec.loader.exec_module(file)
        base = self.torch.nn.Module
        classes = [each for _, each in inspect.getmembers(file, inspect.isclass) if issubclass(each, base)]
        own = [each for each in classes if each.__module__ == name] or [each for each in classes if each is not base]
        wanted = self.parameters.get("MODULE_CLASS", "")
        if wanted:
            own = [each for each in own if each.__name__ == wanted]
        if not own:
            called = f" called {wanted}" if wanted else ""
            raise self._refused(f"Cannot find a subclass of torch.nn.Module{called} in {path}")
        module = own[0]()
        weights = stem + ".pt"
        if os.path.isfile(weights):
            module.load_state_dict(self.torch.load(weights, map_location=self.device, weights_only=True))
        return module if self.device is None else module.to(self.device)

    def _compile_parameters(self) -> dict[str, Any]:
        text = self.parameters[COMPILE]
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._refused(f"parameter '{COMPILE}': expected a JSON object, got '{text}'")
        for key in found:
            if key not in COMPILE_KEYS:
                raise self._refused(f"'{key}' is not an optional parameter for 'torch.compile'")
        return found

    def _autocast(self) -> Any:
        """The library's datatype; None where the configuration does not ask for half precision."""
        text = self.parameters.get(AUTOCAST, "")
        if text and text not in AUTOCAST_DTYPES:
            raise self._refused(f"parameter '{AUTOCAST}': expected {' or '.join(AUTOCAST_DTYPES)}, got '{text}'")
        return getattr(self.torch, AUTOCAST_DTYPES[text]) if text else None

    def _count(self, key: str) -> int:
        text = self.parameters.get(key, "1")
        if not text.isdigit() or int(text) < 1:
            raise self._refused(f"parameter '{key}': expected a number of threads from 1 on, got '{text}'")
        return int(text)

    def _refused(self, text: str) -> Exception:
        found: Exception = pb_utils.TritonModelException(f"model '{self.name}': {text}")
        return found
