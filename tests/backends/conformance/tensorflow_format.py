"""TensorFlow's SavedModels and GraphDefs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from tests.backends.conformance.format import Arrays, Contradiction, Direct, Format, identity_config


class SavedModelFormat(Format):
    name = "savedmodel"
    backend = "tensorflow"
    packages = ("tensorflow",)
    example = "tensorflow_format"
    datatypes = frozenset(BY_PROTOCOL_NAME.values())
    broken: ClassVar[str] = "tensorflow error in reading 'model.savedmodel': Error parsing message"
    minimal_config: ClassVar[str | None] = 'backend: "tensorflow"'
    framework: ClassVar[tuple[str, ...]] = ("tensorflow",)
    has_heavy = True
    install = r"needs the tensorflow package: pip install 'trioton\[tensorflow\]'"
    platform: ClassVar[str] = "tensorflow_savedmodel"
    contradictions: ClassVar[tuple[Contradiction, ...]] = (
        Contradiction(
            'INPUT0" data_type: TYPE_FP32',
            'INPUT0" data_type: TYPE_FP64',
            "configuration expects datatype TYPE_FP64 for input 'INPUT0', model provides TYPE_FP32",
        ),
        Contradiction('"INPUT1"', '"OTHER"', "unexpected inference input 'OTHER', allowed inputs are: INPUT0, INPUT1"),
        Contradiction(
            '"OUTPUT1"', '"OTHER"', "unexpected inference output 'OTHER', allowed outputs are: OUTPUT0, OUTPUT1"
        ),
        Contradiction("dims: [ 16 ]", "dims: [ 17 ]", r"tensor 'INPUT0': the model expects 2 dimensions"),
        Contradiction('"tensorflow_savedmodel"', '"onnxruntime_onnx" backend: "tensorflow"', "unexpected 'platform'"),
    )

    def direct(self, folder: Path) -> Direct:
        """By the library's own loader, eagerly."""
        import tensorflow as tf

        model = tf.saved_model.load(str(folder / "1" / "model.savedmodel"))
        function = model.signatures["serving_default"]

        def run(inputs: Arrays) -> Arrays:
            assert model is not None  # which the function itself does not keep
            found = function(**{name: tf.constant(array) for name, array in inputs.items()})
            return {name: tensor.numpy() for name, tensor in found.items()}

        return run

    def identity(self, folder: Path, datatype: DataType, dims: int = 1) -> None:
        import tensorflow as tf

        from tests.backends.tensorflow.tensorflow_models import DTYPES, saved_model, spec

        saved_model(folder, lambda X: {"Y": tf.identity(X)}, spec("X", [None] * (1 + dims), DTYPES[datatype]))  # noqa: N803
        self._write_identity_config(folder, datatype, dims)

    def _write_identity_config(self, folder: Path, datatype: DataType, dims: int) -> None:
        config = identity_config(self.backend, datatype, dims)
        (folder / "config.pbtxt").write_text(f'{config}platform: "{self.platform}"\n')

    def heavy(self, folder: Path, megabytes: int) -> None:
        import tensorflow as tf

        from tests.backends.tensorflow.tensorflow_models import saved_model, spec

        self.rows_model(folder)
        module = tf.Module()
        module.weights = tf.Variable(_weights(megabytes))

        def compute(INPUT0: Any, INPUT1: Any) -> dict[str, Any]:  # noqa: N803
            moved = INPUT0 + tf.reduce_max(INPUT0 @ module.weights, axis=1, keepdims=True)
            return {"OUTPUT0": moved + INPUT1, "OUTPUT1": moved - INPUT1}

        saved_model(folder, compute, spec("INPUT0", [None, 16]), spec("INPUT1", [None, 16]), module=module)


class GraphDefFormat(SavedModelFormat):
    name = "graphdef"
    example = "graphdef_format"
    broken = "tensorflow error in reading 'model.graphdef': Error parsing message"
    minimal_config = None
    has_heavy = False  # the library takes seconds to optimise a graph with large constants
    platform = "tensorflow_graphdef"
    contradictions = (
        *SavedModelFormat.contradictions[:2],
        Contradiction('"OUTPUT1"', '"OTHER"', "unexpected inference output 'OTHER', allowed outputs are: Identity, "),
        SavedModelFormat.contradictions[3],
    )

    def direct(self, folder: Path) -> Direct:
        """In a function of the library, eagerly."""
        import tensorflow as tf

        graph = tf.compat.v1.GraphDef()
        graph.ParseFromString((folder / "1" / "model.graphdef").read_bytes())
        wrapped = tf.compat.v1.wrap_function(lambda: tf.compat.v1.import_graph_def(graph, name=""), [])
        config = (folder / "config.pbtxt").read_text()
        outputs = re.findall(r'name: "(\w+)"', config.partition("output [")[2])

        def run(inputs: Arrays) -> Arrays:
            function = wrapped.prune([f"{name}:0" for name in inputs], [f"{name}:0" for name in outputs])
            found = function(*(tf.constant(array) for array in inputs.values()))
            return {name: tensor.numpy() for name, tensor in zip(outputs, found, strict=True)}

        return run

    def identity(self, folder: Path, datatype: DataType, dims: int = 1) -> None:
        import tensorflow as tf

        from tests.backends.tensorflow.tensorflow_models import DTYPES, graph_def, placeholder

        shape = [None] * (1 + dims)
        graph_def(folder, lambda: tf.identity(placeholder("X", shape, DTYPES[datatype]), "Y"))
        self._write_identity_config(folder, datatype, dims)


def _weights(megabytes: int) -> Any:
    return np.random.default_rng(1).random((16, megabytes * 1024 * 1024 // 4 // 16), np.float32)
