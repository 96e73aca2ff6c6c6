"""Reads the text in an image with one request: the ensemble `ocr_page` does all that `ocr.py` does in many.

    python examples/clients/ocr_page.py [--image FILE] [-i grpc] [-u HOST:PORT]

The server takes the image through detection, cutting, direction, turning, recognition and decoding; what lies between
never leaves it. Without `--image` the client draws the same page as `ocr.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from connection import Server, command_line, run
from ocr import Line, describe, draw_page
from PIL import Image, ImageOps
from text_boxes import Box

OUTPUTS = ("text", "confidence", "was_upside_down", "boxes")


def read_page(server: Server, image: Image.Image) -> list[Line]:
    """The lines of text in an RGB image, in reading order."""
    pixels = np.asarray(image, dtype=np.uint8)
    texts, confidences, turned, boxes = server.infer("ocr_page", {"image": pixels}, OUTPUTS)
    if texts is None:  # nothing was found, so the server skipped the steps that read
        return []
    rows = zip(texts[:, 0], confidences[:, 0], turned, boxes, strict=True)
    return [
        Line(text.decode("utf-8"), float(confidence), Box(*map(float, box)), bool(was_upside_down))
        for text, confidence, was_upside_down, box in rows
        if text.strip()
    ]


def main() -> int:
    parser = command_line("Read the text in an image, with one request.")
    parser.add_argument("--image", type=Path, metavar="FILE", help="default: a page drawn here")
    arguments = parser.parse_args()
    try:
        image = ImageOps.exif_transpose(Image.open(arguments.image)).convert("RGB") if arguments.image else draw_page()
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return run(arguments, lambda server: describe(read_page(server, image)))


if __name__ == "__main__":
    sys.exit(main())
