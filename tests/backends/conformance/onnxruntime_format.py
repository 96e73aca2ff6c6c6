"""ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from tests.backends.conformance.format import Arrays, Contradiction, Direct, Format, identity_config


class OnnxFormat(Format):
    name = "onnx"
    backend = "onnxruntime"
    packages = ("onnx", "onnxruntime")
    example = "onnx_format"
    datatypes = frozenset(BY_PROTOCOL_NAME.values())
    broken = "onnx runtime error 7: .*Protobuf parsing failed"
    minimal_config = ""
    framework = ("onnxruntime",)
    has_heavy = True
    install = r"needs the onnxruntime package: pip install 'trioton\[cpu\]'"
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
        import onnxruntime

        session: Any = onnxruntime.InferenceSession(folder / "1" / "model.onnx", providers=["CPUExecutionProvider"])
        names = [node.name for node in session.get_outputs()]

        def run(inputs: Arrays) -> Arrays:
            # Its Python interface takes strings as text.
            outputs = session.run(names, {name: _text(array) for name, array in inputs.items()})
            return {name: _bytes(array) for name, array in zip(names, outputs, strict=True)}

        return run

    def identity(self, folder: Path, datatype: DataType, dims: int = 1) -> None:
        from tests.backends.onnxruntime.onnx_models import identity, save

        save(identity(["rows", *(f"d{number}" for number in range(dims))], datatype), folder)
        (folder / "config.pbtxt").write_text(identity_config(self.backend, datatype, dims))

    def heavy(self, folder: Path, megabytes: int) -> None:
        from onnx import numpy_helper

        from tests.backends.onnxruntime.onnx_models import model, node, save, tensor

        self.rows_model(folder)
        weights = np.zeros((16, megabytes * 1024 * 1024 // 4 // 16), np.float32)
        made = model(
            [
                node("MatMul", ["INPUT0", "W"], ["wide"]),
                node("ReduceMax", ["wide"], ["one"], axes=[1], keepdims=1),
                node("Add", ["INPUT0", "one"], ["left"]),
                node("Add", ["left", "INPUT1"], ["OUTPUT0"]),
                node("Sub", ["left", "INPUT1"], ["OUTPUT1"]),
            ],
            [tensor(name, ["rows", 16]) for name in ("INPUT0", "INPUT1")],
            [tensor(name, ["rows", 16]) for name in ("OUTPUT0", "OUTPUT1")],
            [numpy_helper.from_array(weights, "W")],
        )
        save(made, folder)


def _text(array: Any) -> Any:
    return np.vectorize(bytes.decode, otypes=[object])(array) if array.dtype == np.object_ else array


def _bytes(array: Any) -> Any:
    return np.vectorize(str.encode, otypes=[object])(array) if array.dtype == np.object_ else array
