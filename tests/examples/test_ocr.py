"""Reading pages with the real models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.examples.loading import load_example
from tests.examples.local_server import Array, LocalServer

ocr = load_example("clients/ocr")
tour = load_example("tour")


def page_of(texts: Sequence[str], size: int = 32) -> Image.Image:
    page = Image.new("RGB", (900, 80 * len(texts) + 60), "white")
    draw = ImageDraw.Draw(page)
    for index, text in enumerate(texts):
        draw.text((40, 40 + 80 * index), text, font=ImageFont.load_default(size), fill="black")
    return page


def letters(text: str) -> str:
    return "".join(text.casefold().split())


def test_the_drawn_page_is_read(server: LocalServer) -> None:
    """Letter by letter, and the upside-down line is noticed."""
    lines = ocr.read_page(server, ocr.draw_page())
    assert tour.problems_of_page(lines) == []
    assert [letters(line.text) for line in lines] == [letters(text) for text, _ in ocr.PAGE_LINES]
    assert min(line.confidence for line in lines) > 0.9


@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_the_size_of_the_image_does_not_matter(server: LocalServer, scale: float) -> None:
    page = ocr.draw_page()
    resized = page.resize((round(page.width * scale), round(page.height * scale)))
    lines = ocr.read_page(server, resized)
    assert tour.problems_of_page(lines) == []
    assert all(0 < line.box.left < line.box.right < resized.width for line in lines)


def test_more_lines_than_a_batch_holds_come_in_reading_order(server: LocalServer) -> None:
    texts = [
        "one",
        "two and more",
        "three",
        "four is longer",
        "five",
        "six of one",
        "seven",
        "eight",
        "nine, last",
    ]
    lines = ocr.read_page(server, page_of(texts))
    assert [letters(line.text) for line in lines] == [letters(text) for text in texts]
    sent = server.batch_sizes
    assert [size for model, size in sent if model == "ocr_recognition"] == [8, 1]
    assert [size for model, size in sent if model == "ocr_direction"] == [8, 1]


def test_an_empty_page_has_no_text(server: LocalServer) -> None:
    lines = ocr.read_page(server, Image.new("RGB", (640, 480), "white"))
    assert lines == []
    assert ocr.describe(lines) == ["no text found"]


def test_text_that_runs_downwards_is_read(server: LocalServer) -> None:
    """Written from top to bottom, turned to the right by a quarter."""
    upright = page_of(["Turn your head"], size=48)
    lines = ocr.read_page(server, upright.rotate(-90, expand=True, fillcolor="white"))
    assert [letters(line.text) for line in lines] == ["turnyourhead"]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((960, 736), (736, 960)),
        ((480, 368), (736, 960)),
        ((4000, 1000), (512, 1984)),
        ((100, 3000), (1984, 64)),
        ((10, 10), (736, 736)),
    ],
)
def test_the_detection_model_gets_sides_it_can_take(size: tuple[int, int], expected: tuple[int, int]) -> None:
    """Multiples of 32, the shorter one at least 736 unless that would take the longer one past 2000."""
    shapes = []

    class Detector:
        def infer(self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
            shapes.append(inputs["x"].shape)
            return [np.zeros((1, 1, *inputs["x"].shape[2:]), dtype=np.float32)]

    assert ocr.detect(Detector(), Image.new("RGB", size)) == []
    assert shapes == [(1, 3, *expected)]


def test_pixels_become_numbers_from_minus_one_to_one_blue_first() -> None:
    tensor = ocr.normalised(Image.new("RGB", (2, 1), (255, 0, 51)))
    assert tensor.dtype == np.float32
    assert tensor.flags.c_contiguous
    assert tensor[:, 0, 0].tolist() == pytest.approx([-0.6, -1.0, 1.0])


@pytest.mark.parametrize(("size", "filled"), [((96, 48), 96), ((200, 48), 192), ((50, 100), 24)])
def test_line_tensors_share_one_width(size: tuple[int, int], filled: int) -> None:
    """Short lines keep their form and are followed by grey (0), long ones are squeezed."""
    tensor = ocr.line_tensor(Image.new("RGB", size, "white"), 192)
    assert tensor.shape == (3, 48, 192)
    assert (tensor[:, :, :filled] == 1).all()
    assert (tensor[:, :, filled:] == 0).all()


def test_the_answer_in_words() -> None:
    lines = [ocr.Line("One", 0.987, None, False), ocr.Line("Two", 1.0, None, True)]
    assert ocr.describe(lines) == ["One  (99%)", "Two  (100%, upside down)"]
