"""Fails as it is told to."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        action = pb_utils.get_input_tensor_by_name(requests[0], "ACTION").as_numpy()[0]
        if action == b"raise":
            raise ValueError("raised on purpose")
        if action == b"error":
            error = pb_utils.TritonError("refused on purpose", pb_utils.TritonError.INVALID_ARG)
            return [pb_utils.InferenceResponse(error=error) for _ in requests]
        return []
