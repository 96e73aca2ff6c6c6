"""Gives every input back as an output of the same name."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(t.name(), t.as_numpy()) for t in request.inputs()])
            for request in requests
        ]
