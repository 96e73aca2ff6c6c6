"""Stands where a server would: runs the models of a repository in this process, with nothing between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from google.protobuf import text_format
from numpy.typing import NDArray

from protocol.proto import message_class
from tests.examples.loading import load_backend_utils, load_model

Array = NDArray[Any]


def read_config(model_directory: Path) -> Any:
    """The `inference.ModelConfig` in a model's `config.pbtxt`; parsing is strict, unknown fields raise."""
    config = message_class("inference.ModelConfig")()
    return text_format.Parse((model_directory / "config.pbtxt").read_text(encoding="utf-8"), config)


class PythonModel:
    """A `model.py` in this process: the model's own class, called as its worker calls it."""

    def __init__(self, model_directory: Path) -> None:
        self.name = model_directory.name
        self._pb_utils = load_backend_utils()
        self._model = load_model(model_directory / "1" / "model.py").TritonPythonModel()
        if hasattr(self._model, "initialize"):
            self._model.initialize({"model_repository": str(model_directory), "model_version": "1"})

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """One request, alone in its batch. Raises RuntimeError with the text of the error that the model answers."""
        tensors = [self._pb_utils.Tensor(name, array) for name, array in inputs.items()]
        request = self._pb_utils.InferenceRequest(
            inputs=tensors, requested_output_names=list(outputs), model_name=self.name
        )
        (response,) = self._model.execute([request])
        if response.has_error():
            raise RuntimeError(response.error().message())
        return [self._pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in outputs]


class OnnxModel:
    def __init__(self, model_directory: Path) -> None:
        file = model_directory / "1" / "model.onnx"
        self.session: Any = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        # A scalar of the model is a tensor of one element on the wire.
        nodes = self.session.get_inputs()
        feed = {node.name: inputs[node.name].reshape(()) if node.shape == [] else inputs[node.name] for node in nodes}
        assert set(inputs) == set(feed)
        return list(self.session.run(list(outputs), feed))


class LocalServer:
    """Offers what the clients ask of a server."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.batch_sizes: list[tuple[str, int]] = []  # of each call, to see what a client sent
        self._models: dict[str, OnnxModel | PythonModel] = {}

    def model(self, name: str) -> OnnxModel | PythonModel:
        if name not in self._models:
            directory = self.repository / name
            is_python = (directory / "1" / "model.py").is_file()
            self._models[name] = PythonModel(directory) if is_python else OnnxModel(directory)
        return self._models[name]

    def session(self, model: str) -> Any:
        """The session of an ONNX model."""
        onnx_model = self.model(model)
        assert isinstance(onnx_model, OnnxModel)
        return onnx_model.session

    def infer(self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        self.batch_sizes.append((model, next(iter(inputs.values())).shape[0]))
        return self.model(model).infer(inputs, outputs)

    def parameters(self, model: str) -> dict[str, str]:
        config = read_config(self.repository / model)
        return {key: value.string_value for key, value in config.parameters.items()}
