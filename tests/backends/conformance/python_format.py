"""`model.py` files. The framework called directly is the model's own class, in the test's process."""

from __future__ import annotations

from pathlib import Path

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from repository.pbtxt import parse_pbtxt
from tests.backends.conformance.format import Arrays, Direct, Format, identity_config
from tests.examples.local_server import PythonModel

IDENTITY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "X")) for request in requests]

    def answer(self, x):
        y = pb_utils.Tensor.from_dlpack("Y", x) if x.triton_dtype() == BF16 else pb_utils.Tensor("Y", x.as_numpy())
        return pb_utils.InferenceResponse([y])


BF16 = 14  # numpy has no such type
"""
DESCRIBING = """

    @staticmethod
    def auto_complete_config(config):
        for name in ("INPUT0", "INPUT1"):
            config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [16]})
        for name in ("OUTPUT0", "OUTPUT1"):
            config.add_output({"name": name, "data_type": "TYPE_FP32", "dims": [16]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config
"""


class PythonFormat(Format):
    name = "python"
    backend = "python"
    example = "python_format"
    datatypes = frozenset(BY_PROTOCOL_NAME.values())
    missing = "model.py"
    broken = "SyntaxError"
    minimal_config = 'backend: "python"'

    def direct(self, folder: Path) -> Direct:
        model = PythonModel(folder)
        config = parse_pbtxt((folder / "config.pbtxt").read_text(), source="config.pbtxt")
        names = [entry.name for entry in config.output]

        def run(inputs: Arrays) -> Arrays:
            return dict(zip(names, model.infer(inputs, names), strict=True))

        return run

    def identity(self, folder: Path, datatype: DataType, dims: int = 1) -> None:
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(IDENTITY)
        (folder / "config.pbtxt").write_text(identity_config(self.backend, datatype, dims))

    def completing(self, folder: Path) -> None:
        super().completing(folder)
        path = folder / "1" / "model.py"
        path.write_text(path.read_text().rstrip() + DESCRIBING)
