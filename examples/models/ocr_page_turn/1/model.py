"""Turns the lines of a page that are upside down.

lines            FP32 [lines, 3, 48, width]   as ocr_page_cut gives them
widths           INT32 [lines]                how much of the width each line fills
directions       FP32 [lines, 2]              how likely each is upright, and upside down
upright          FP32 [lines, 3, 48, width]   all of them upright
was_upside_down  BOOL [lines]
"""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils

SURELY_UPSIDE_DOWN = 0.9


def turned(lines: np.ndarray, widths: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    was_upside_down = directions[:, 1] > SURELY_UPSIDE_DOWN
    upright = lines.copy()
    for index in np.nonzero(was_upside_down)[0]:
        upright[index, :, :, : widths[index]] = lines[index, :, ::-1, : widths[index]][:, :, ::-1]
    return upright, was_upside_down


class TritonPythonModel:
    def execute(self, requests: list) -> list:
        responses = []
        for request in requests:
            inputs = [
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()
                for name in ("lines", "widths", "directions")
            ]
            upright, was_upside_down = turned(*inputs)
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("upright", upright), pb_utils.Tensor("was_upside_down", was_upside_down)]
                )
            )
        return responses
