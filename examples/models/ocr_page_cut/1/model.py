"""Cuts the lines of text out of a page, where the detection model saw them.

image       UINT8 [height, width, 3]       red, green, blue
is_text     FP32 [1, 1, height', width']   how likely each pixel is text, for the page in another size
boxes       FP32 [lines, 5]                left, top, right, bottom in pixels of the image, and a score; as one reads
lines       FP32 [lines, 3, 48, width]     as recognition wants them: -1 to 1, blue first, grey to the right
widths      INT32 [lines]                  how much of the width each line fills
beginnings  FP32 [lines, 3, 48, 192]       the same of the beginnings, for direction: squeezed, long lines mislead it
has_text    BOOL [1]                       whether there is any line
"""

from __future__ import annotations

import math

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image
from text_boxes import Box, find_boxes  # beside this file in the repository

LINE_HEIGHT = 48
BEGINNING_WIDTH = 192
LEAST_WIDTH = 320
WIDTH_STEP = 64  # widths are rounded up, so that lines of several pages fit into one batch
MOST_LINES = 32  # max_batch_size of ocr_direction, ocr_recognition and ocr_text


class TooManyLines(Exception):
    """More than the models after this one take in one batch."""


def find_lines(image: np.ndarray, is_text: np.ndarray) -> list[Box]:
    """Boxes in pixels of the image."""
    across, down = image.shape[1] / is_text.shape[1], image.shape[0] / is_text.shape[0]
    boxes = [box.scaled(across, down) for box in find_boxes(is_text)]
    if len(boxes) > MOST_LINES:
        raise TooManyLines(f"image: it has {len(boxes)} lines of text, at most {MOST_LINES} can be read at a time")
    return boxes


def crop(page: Image.Image, box: Box) -> Image.Image:
    """What stands in a box; a column of text is laid down, as the other models know lines only."""
    left, top, right, bottom = (round(edge) for edge in (box.left, box.top, box.right, box.bottom))
    part = page.crop((max(left, 0), max(top, 0), min(right, page.width), min(bottom, page.height)))
    return part.rotate(90, expand=True) if part.height >= 1.5 * part.width else part


def beginning(part: Image.Image) -> Image.Image:
    return part.crop((0, 0, min(part.width, BEGINNING_WIDTH * part.height // LINE_HEIGHT), part.height))


def natural_width(part: Image.Image) -> int:
    return math.ceil(LINE_HEIGHT * part.width / part.height)


def stacked(parts: list[Image.Image], width: int) -> np.ndarray:
    """FP32 [parts, 3, 48, width]; what is longer is squeezed."""
    lines = np.zeros((len(parts), 3, LINE_HEIGHT, width), dtype=np.float32)
    for line, part in zip(lines, parts, strict=True):
        resized = part.resize((min(natural_width(part), width), LINE_HEIGHT), Image.Resampling.BILINEAR)
        pixels = np.asarray(resized, dtype=np.float32)[:, :, ::-1]
        line[:, :, : resized.width] = pixels.transpose(2, 0, 1) / 127.5 - 1
    return lines


def cut(image: np.ndarray, is_text: np.ndarray) -> dict[str, np.ndarray]:
    boxes = find_lines(image, is_text)
    page = Image.fromarray(image)
    parts = [crop(page, box) for box in boxes]
    widths = [natural_width(part) for part in parts]
    width = max([LEAST_WIDTH, *(math.ceil(width / WIDTH_STEP) * WIDTH_STEP for width in widths)])
    rows = [(box.left, box.top, box.right, box.bottom, box.score) for box in boxes]
    return {
        "boxes": np.array(rows, dtype=np.float32).reshape(-1, 5),
        "lines": stacked(parts, width),
        "widths": np.array(widths, dtype=np.int32),
        "beginnings": stacked([beginning(part) for part in parts], BEGINNING_WIDTH),
        "has_text": np.array([bool(boxes)]),
    }


class TritonPythonModel:
    def execute(self, requests: list) -> list:
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        image, is_text = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("image", "is_text"))
        try:
            outputs = cut(image, is_text[0, 0])
        except TooManyLines as problem:
            error = pb_utils.TritonError(str(problem), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
