"""Answers after a time, as a model on an accelerator: its processor is free meanwhile."""

import time
from typing import Any

import triton_python_backend_utils as pb_utils

SECONDS = 0.01


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        time.sleep(SECONDS * sum(map(len, inputs)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in inputs]
