"""Brings a page to a size that the detection model can take.

image  UINT8 [height, width, 3]         red, green, blue
x      FP32 [1, 3, height', width']     sides in multiples of 32, values from -1 to 1, blue first
"""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

SHORTER_SIDE = 736  # is brought up to this …
LONGER_SIDE = 2000  # … but the longer one not beyond this


def scaled(image: np.ndarray) -> np.ndarray:
    page = Image.fromarray(image)
    scale = min(max(1.0, SHORTER_SIDE / min(page.size)), LONGER_SIDE / max(page.size))
    width, height = (max(32, round(side * scale / 32) * 32) for side in page.size)
    pixels = np.asarray(page.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)
    return np.ascontiguousarray(pixels[:, :, ::-1].transpose(2, 0, 1)[None] / 127.5 - 1)


class TritonPythonModel:
    def execute(self, requests: list) -> list:
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            if 0 in image.shape:
                error = pb_utils.TritonError("image: it has no pixels", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=error))
                continue
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("x", scaled(image))]))
        return responses
