"""The dense model as a SavedModel of TensorFlow, which is imported only where it is measured."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.dense_models import CONFIG, WIDTH, DenseFormat, Rows, Weights


class DenseTensorFlow(DenseFormat):
    """With one thread inside an operator, and the operators one after the other in the caller's."""

    name = "tensorflow"
    config = (
        f'backend: "tensorflow"{CONFIG}'
        'parameters { key: "TF_NUM_INTRA_THREADS" value { string_value: "1" } }\n'
        'parameters { key: "TF_NUM_INTER_THREADS" value { string_value: "1" } }\n'
    )

    def save(self, folder: Path) -> None:
        from backends.tensorflow.library import tf

        with suppress(RuntimeError):  # it has been used before, by another test of the same process
            # The direct calls are made in this process, whose threads the library counts when it is first used.
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        module, weights = tf.Module(), Weights()
        module.positions = tf.Variable(weights.positions)
        module.layers = [tf.Variable(array) for array in weights.layers]

        def compute(X: Any) -> dict[str, Any]:  # noqa: N803 (the input's name)
            x = X[:, None] + module.positions
            for layer in module.layers:
                x = tf.nn.relu(tf.matmul(x, layer))
            return {"Y": tf.reduce_mean(x, axis=1)}

        function = tf.function(compute, input_signature=[tf.TensorSpec([None, WIDTH], tf.float32, "X")])
        tf.saved_model.save(module, str(folder / "model.savedmodel"), {"serving_default": function})

    def open(self, repository: Path) -> Any:
        from backends.tensorflow.library import tf, v1

        graph = tf.Graph()
        config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        with graph.as_default():
            session = v1.Session(graph=graph, config=config)
            path = str(repository / self.name / "1" / "model.savedmodel")
            signature = v1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        run = session.make_callable(signature.outputs["Y"].name, [signature.inputs["X"].name])

        def call(rows: Rows) -> Rows:
            found: Rows = run(rows)
            return found

        return call
