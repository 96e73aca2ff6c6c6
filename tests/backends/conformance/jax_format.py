"""Functions of `jax.export`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from tests.backends.conformance.format import Arrays, Contradiction, Direct, Format, identity_config


class JaxFormat(Format):
    name = "jax"
    backend = "jax"
    packages = ("jax", "flatbuffers")
    example = "jax_format"
    models = frozenset({"add_sub", "image"})
    no_text = "There are no strings in JAX"
    datatypes = frozenset(BY_PROTOCOL_NAME.values()) - {DataType.BYTES}
    has_empty_dims = False  # symbols stand for sizes from 1 on
    broken = "cannot be read as a function of jax.export by the installed jax"
    minimal_config = ""
    framework = ("jax",)
    has_heavy = True
    install = r"needs the jax and flatbuffers packages: pip install 'trioton\[jax\]'"
    contradictions = (
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
    )

    def direct(self, folder: Path) -> Direct:
        from jax import export

        function = export.deserialize(bytearray((folder / "1" / "model.jax").read_bytes()))

        def run(inputs: Arrays) -> Arrays:
            return {name: np.asarray(array) for name, array in function.call(**inputs).items()}

        return run

    def identity(self, folder: Path, datatype: DataType, dims: int = 1) -> None:
        from tests.backends.jax.jax_models import identity

        identity(folder, datatype, ", ".join(["rows", *(f"d{number}" for number in range(dims))]))
        (folder / "config.pbtxt").write_text(identity_config(self.backend, datatype, dims))

    def heavy(self, folder: Path, megabytes: int) -> None:
        import jax.numpy as jnp

        from tests.backends.conformance.serving import add_config
        from tests.backends.jax.jax_models import save, spec

        self.rows_model(folder)
        weights = np.random.default_rng(1).random((16, megabytes * 1024 * 1024 // 4 // 16), np.float32)

        def function(*, INPUT0, INPUT1):  # type: ignore[no-untyped-def]  # noqa: N803
            moved = INPUT0 + jnp.max(INPUT0 @ weights, axis=1, keepdims=True)
            return {"OUTPUT0": moved + INPUT1, "OUTPUT1": moved - INPUT1}

        add_config(folder, 'parameters { key: "BATCH_PADDING" value { string_value: "MAX" } }')  # compiled once
        rows = spec("rows, 16", DataType.FP32)
        save(folder, function, INPUT0=rows, INPUT1=rows)
