"""Reads a page by calling other models of the server (BLS): the ensemble `ocr_page`, written as Python.

An ensemble is faster and needs no code. This form can do what no graph can: loops, conditions on anything, and work of
its own between the calls. Each call is an ordinary request, so it is batched with those of other pages.

image            UINT8 [height, width, 3]   red, green, blue
text             BYTES [lines, 1]           UTF-8; like the next two, left out where there is no line
confidence       FP32 [lines, 1]
was_upside_down  BOOL [lines]
boxes            FP32 [lines, 5]            left, top, right, bottom in pixels of the image, and a score
"""

from __future__ import annotations

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class CallFailed(Exception):
    """A called model has answered with an error."""

    def __init__(self, error: pb_utils.TritonError) -> None:
        super().__init__(error.message())
        self.error = error


async def call(
    request: pb_utils.InferenceRequest, model: str, inputs: dict[str, np.ndarray], outputs: list[str]
) -> list[np.ndarray]:
    """Run another model on behalf of a request: the call ends with it, and is traced beneath it."""
    tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
    response = await pb_utils.InferenceRequest(
        model_name=model, inputs=tensors, requested_output_names=outputs, trace=request.trace()
    ).async_exec()
    if response.has_error():
        raise CallFailed(response.error())
    return [pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in outputs]


async def read(request: pb_utils.InferenceRequest) -> dict[str, np.ndarray]:
    """All lines of a page."""
    image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
    (scaled,) = await call(request, "ocr_page_scale", {"image": image}, ["x"])
    (is_text,) = await call(request, "ocr_detection", {"x": scaled}, ["sigmoid_0.tmp_0"])
    boxes, lines, widths, beginnings, has_text = await call(
        request,
        "ocr_page_cut",
        {"image": image, "is_text": is_text},
        ["boxes", "lines", "widths", "beginnings", "has_text"],
    )
    if not has_text[0]:
        return {"boxes": boxes}
    (directions,) = await call(request, "ocr_direction", {"x": beginnings}, ["save_infer_model/scale_0.tmp_1"])
    upright, was_upside_down = await call(
        request,
        "ocr_page_turn",
        {"lines": lines, "widths": widths, "directions": directions},
        ["upright", "was_upside_down"],
    )
    (probabilities,) = await call(request, "ocr_recognition", {"x": upright}, ["softmax_11.tmp_0"])
    text, confidence = await call(request, "ocr_text", {"probabilities": probabilities}, ["text", "confidence"])
    return {"text": text, "confidence": confidence, "was_upside_down": was_upside_down, "boxes": boxes}


async def answer(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    try:
        outputs = await read(request)
    except CallFailed as failed:
        return pb_utils.InferenceResponse(output_tensors=[], error=failed.error)
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])


class TritonPythonModel:
    async def execute(self, requests: list) -> list:
        return await asyncio.gather(*(answer(request) for request in requests))
