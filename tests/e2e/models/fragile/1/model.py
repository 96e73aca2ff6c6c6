"""Replies with its process id, unless it is told to die."""

import os
import signal

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        for request in requests:
            if pb_utils.get_input_tensor_by_name(request, "ACTION").as_numpy()[0] == b"die":
                os.kill(os.getpid(), signal.SIGKILL)
        pid = np.array([os.getpid()], np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", pid)]) for _ in requests]
