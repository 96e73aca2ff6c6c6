"""Says how many requests, and how many rows, it was given together."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        rows = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy().shape[0] for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("COUNTS", np.full((own, 2), [len(rows), sum(rows)], np.int32))])
            for own in rows
        ]
