"""Reads the text in an image, with four models in a row: three of PP-OCR, and a Python model.

    python examples/clients/ocr.py [--image FILE] [-i grpc] [-u HOST:PORT]

`ocr_detection` finds the lines, `ocr_direction` tells which of them are upside down, `ocr_recognition` sees which
characters stand in each, and `ocr_text` makes text of that. Without `--image` it draws a page of its own, one line of
it upside down. Pillow and numpy do the rest.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from connection import Server, command_line, run
from PIL import Image, ImageDraw, ImageFont, ImageOps
from text_boxes import Box, find_boxes

PAGE_LINES = (
    ("Trioton reads this page", 52),
    ("Order number 4711", 44),
    ("Total amount: 1,234.50 EUR", 40),
    ("Payable within 30 days, thank you!", 34),
    ("Somebody turned this line around", 40),
)
UPSIDE_DOWN = PAGE_LINES[-1][0]

DETECTION_SIDE = 736  # the shorter side of an image is brought up to this for detection …
DETECTION_LIMIT = 2000  # … but the longer one not beyond this
LINE_HEIGHT = 48  # of a line of text for direction and recognition
DIRECTION_WIDTH = 192
RECOGNITION_WIDTH = 320  # at least
SURELY_UPSIDE_DOWN = 0.9
BATCH = 8  # lines per request; those of one are padded to the longest, so more would not be faster


@dataclass(frozen=True)
class Line:
    text: str
    confidence: float  # 0 to 1
    box: Box  # in pixels of the image
    was_upside_down: bool


def draw_page() -> Image.Image:
    """A page with `PAGE_LINES` on it, the last one upside down."""
    page = Image.new("RGB", (960, 736), "white")
    top = 70
    for text, size in PAGE_LINES:
        font = ImageFont.load_default(size)
        strip = Image.new("RGB", (820, size + 24), "white")
        ImageDraw.Draw(strip).text((10, 6), text, font=font, fill=(30, 30, 60))
        page.paste(strip.rotate(180) if text == UPSIDE_DOWN else strip, (70, top))
        top += size + 80
    return page


def read_page(server: Server, image: Image.Image) -> list[Line]:
    """The lines of text in an RGB image, in reading order."""
    boxes = detect(server, image)
    crops = [crop(image, box) for box in boxes]
    upside_down = are_upside_down(server, crops)
    crops = [c.rotate(180) if turned else c for c, turned in zip(crops, upside_down, strict=True)]
    texts = recognise(server, crops)
    found = zip(texts, boxes, upside_down, strict=True)
    return [Line(text, confidence, box, turned) for (text, confidence), box, turned in found if text.strip()]


def detect(server: Server, image: Image.Image) -> list[Box]:
    """Boxes around the lines, in pixels of the image. The model wants sides that are multiples of 32."""
    scale = min(max(1.0, DETECTION_SIDE / min(image.size)), DETECTION_LIMIT / max(image.size))
    width, height = (max(32, round(side * scale / 32) * 32) for side in image.size)
    tensor = normalised(image.resize((width, height), Image.Resampling.BILINEAR))
    (probability,) = server.infer("ocr_detection", {"x": tensor[None]}, ["sigmoid_0.tmp_0"])
    boxes = find_boxes(probability[0, 0])
    return [box.scaled(image.width / width, image.height / height) for box in boxes]


def crop(image: Image.Image, box: Box) -> Image.Image:
    """What stands in a box; a column of text is laid down, as the other models know lines only."""
    edges = (box.left, box.top, box.right, box.bottom)
    left, top, right, bottom = (round(edge) for edge in edges)
    part = image.crop((max(left, 0), max(top, 0), min(right, image.width), min(bottom, image.height)))
    return part.rotate(90, expand=True) if part.height >= 1.5 * part.width else part


def are_upside_down(server: Server, crops: Sequence[Image.Image]) -> list[bool]:
    """Judged by the beginnings of the lines: squeezed into the width that the model sees, long ones mislead it."""
    beginnings = [
        part.crop((0, 0, min(part.width, DIRECTION_WIDTH * part.height // LINE_HEIGHT), part.height)) for part in crops
    ]
    answers: list[bool] = []
    for start in range(0, len(crops), BATCH):
        batch = np.stack([line_tensor(part, DIRECTION_WIDTH) for part in beginnings[start : start + BATCH]])
        (scores,) = server.infer("ocr_direction", {"x": batch}, ["save_infer_model/scale_0.tmp_1"])
        answers += [bool(upside_down > SURELY_UPSIDE_DOWN) for _, upside_down in scores]
    return answers


def recognise(server: Server, crops: Sequence[Image.Image]) -> list[tuple[str, float]]:
    """Text and confidence of each crop. The lines of a batch share one width, so lines of like length go together."""
    answers: dict[int, tuple[str, float]] = {}
    by_length = sorted(range(len(crops)), key=lambda index: crops[index].width / crops[index].height)
    for start in range(0, len(by_length), BATCH):
        chosen = by_length[start : start + BATCH]
        longest = crops[chosen[-1]]
        width = max(RECOGNITION_WIDTH, math.ceil(LINE_HEIGHT * longest.width / longest.height))
        batch = np.stack([line_tensor(crops[index], width) for index in chosen])
        (probabilities,) = server.infer("ocr_recognition", {"x": batch}, ["softmax_11.tmp_0"])
        text, confidence = server.infer("ocr_text", {"probabilities": probabilities}, ["text", "confidence"])
        for index, (line,), (score,) in zip(chosen, text, confidence, strict=True):
            answers[index] = (line.decode("utf-8"), float(score))
    return [answers[index] for index in range(len(crops))]


def line_tensor(part: Image.Image, width: int) -> np.ndarray:
    """A line of text as FP32 [3, 48, width]: brought to height 48, squeezed if it is too long, grey to the right."""
    natural_width = math.ceil(LINE_HEIGHT * part.width / part.height)
    resized = part.resize((min(natural_width, width), LINE_HEIGHT), Image.Resampling.BILINEAR)
    tensor = np.zeros((3, LINE_HEIGHT, width), dtype=np.float32)
    tensor[:, :, : resized.width] = normalised(resized)
    return tensor


def normalised(image: Image.Image) -> np.ndarray:
    """An RGB image as FP32 [3, height, width] from -1 to 1, blue first, as PP-OCR was trained."""
    pixels = np.asarray(image, dtype=np.float32)[:, :, ::-1]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1) / 127.5 - 1)


def describe(lines: Sequence[Line]) -> list[str]:
    if not lines:
        return ["no text found"]
    return [f"{line.text}  ({line.confidence:.0%}{', upside down' * line.was_upside_down})" for line in lines]


def main() -> int:
    parser = command_line("Read the text in an image.")
    parser.add_argument("--image", type=Path, metavar="FILE", help="default: a page drawn here")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the page that was read to an image file")
    arguments = parser.parse_args()
    try:
        image = ImageOps.exif_transpose(Image.open(arguments.image)).convert("RGB") if arguments.image else draw_page()
        if arguments.save:
            image.save(arguments.save)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return run(arguments, lambda server: describe(read_page(server, image)))


if __name__ == "__main__":
    sys.exit(main())
