"""OpenVINO's own files (IR)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from tests.backends.conformance.format import Arrays, Contradiction, Direct, Format, identity_config

# The library computes numbers of 64 bits in 32, and its Python interface has no arrays for the other two.
NOT_EXACT = frozenset({DataType.INT64, DataType.UINT64, DataType.FP64, DataType.BF16, DataType.BYTES})


class OpenVinoFormat(Format):
    name = "openvino"
    backend = "openvino"
    packages = ("openvino",)
    example = "openvino_format"
    models = frozenset({"add_sub", "image"})
    no_text = "The library has no operators for strings"
    datatypes = frozenset(BY_PROTOCOL_NAME.values()) - NOT_EXACT
    broken = "openvino error in reading model : Unable to read the model"
    minimal_config = ""
    framework = ("openvino",)
    has_heavy = True
    install = r"needs the openvino package: pip install 'trioton\[openvino\]'"
    contradictions = (
        Contradiction('"INPUT1"', '"OTHER"', "unexpected inference input 'OTHER', allowed inputs are: INPUT0, INPUT1"),
        Contradiction(
            '"OUTPUT1"', '"OTHER"', "unexpected inference output 'OTHER', allowed outputs are: OUTPUT0, OUTPUT1"
        ),
        Contradiction("dims: [ 16 ]", "dims: [ 17 ]", r"tensor 'INPUT0': the model expects 2 dimensions"),
        Contradiction(
            'INPUT0" data_type: TYPE_FP32',
            'INPUT0" data_type: TYPE_STRING',
            "unsupported datatype TYPE_STRING for input 'INPUT0'",
        ),
    )

    def direct(self, folder: Path) -> Direct:
        import openvino as ov

        # In the precision of the model, as the server does it.
        model: Any = ov.compile_model(folder / "1" / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

        def run(inputs: Arrays) -> Arrays:
            found = model(dict(inputs))
            return {port.any_name: array for port, array in found.items()}

        return run

    def identity(self, folder: Path, datatype: DataType, dims: int = 1) -> None:
        from tests.backends.openvino.openvino_models import ELEMENT_TYPES, identity

        identity(folder, [-1] * (1 + dims), ELEMENT_TYPES[datatype])
        (folder / "config.pbtxt").write_text(identity_config(self.backend, datatype, dims))

    def heavy(self, folder: Path, megabytes: int) -> None:
        from openvino import opset13 as ops

        from tests.backends.openvino.openvino_models import save, tensor

        self.rows_model(folder)
        weights = np.random.default_rng(1).random((16, megabytes * 1024 * 1024 // 4 // 16), np.float32)
        left, right = tensor("INPUT0", [-1, 16]), tensor("INPUT1", [-1, 16])
        moved = ops.add(left, ops.reduce_max(ops.matmul(left, weights, False, False), np.array([1]), keep_dims=True))
        save(folder, [left, right], {"OUTPUT0": ops.add(moved, right), "OUTPUT1": ops.subtract(moved, right)})
