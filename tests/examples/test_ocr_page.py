"""The ensemble `ocr_page`: its Python models by themselves, and a server that has nothing else to load."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.examples.loading import EXAMPLES, import_path, load_example, load_model
from tests.examples.local_server import LocalServer
from tests.examples.test_live import run_script, settings, url
from trioton.server import open_server

ocr = load_example("clients/ocr")
scale = load_model(EXAMPLES / "models" / "ocr_page_scale" / "1" / "model.py")
turn = load_model(EXAMPLES / "models" / "ocr_page_turn" / "1" / "model.py")
with import_path(EXAMPLES / "clients"):  # text_boxes.py, which the repository has beside the model
    cut = load_model(EXAMPLES / "models" / "ocr_page_cut" / "1" / "model.py")


@pytest.mark.parametrize(
    ("size", "expected"),
    [((960, 736), (736, 960)), ((100, 50), (736, 1472)), ((4000, 1000), (512, 1984)), ((3000, 10), (32, 1984))],
)
def test_a_page_is_brought_to_sides_that_the_model_takes(size: tuple[int, int], expected: tuple[int, int]) -> None:
    page = np.full((size[1], size[0], 3), 255, np.uint8)
    x = scale.scaled(page)
    assert x.shape == (1, 3, *expected)
    assert (x.dtype, x.min(), x.max()) == (np.float32, 1, 1)


def test_lines_are_cut_with_their_beginnings() -> None:
    """Two boxes in a map of half the page's size; one line is a column."""
    image = np.full((200, 1200, 3), 200, np.uint8)
    is_text = np.zeros((100, 600), np.float32)
    is_text[10:30, 20:420] = 0.9
    is_text[50:90, 500:510] = 0.8
    outputs = cut.cut(image, is_text)
    assert outputs["has_text"].tolist() == [True]
    assert outputs["boxes"].shape == (2, 5)
    left, top, right, bottom, score = outputs["boxes"][0]
    assert left < 40 < 840 < right
    assert top < 20 < 60 < bottom
    assert score == pytest.approx(0.9)
    widths = outputs["widths"].tolist()
    assert outputs["lines"].shape == (2, 3, 48, max(widths) + -max(widths) % 64)
    assert outputs["beginnings"].shape == (2, 3, 48, 192)
    for line, width in zip(outputs["lines"], widths, strict=True):
        assert np.all(line[:, :, :width] != 0)
        assert np.all(line[:, :, width:] == 0)


def test_an_empty_page_has_no_line() -> None:
    outputs = cut.cut(np.full((64, 64, 3), 255, np.uint8), np.zeros((32, 32), np.float32))
    assert outputs["has_text"].tolist() == [False]
    assert [outputs[name].shape for name in ("boxes", "lines", "widths", "beginnings")] == [
        (0, 5),
        (0, 3, 48, 320),
        (0,),
        (0, 3, 48, 192),
    ]


def test_more_lines_than_a_batch_holds_are_refused() -> None:
    is_text = np.zeros((33 * 40, 200), np.float32)
    for line in range(33):
        is_text[40 * line + 10 : 40 * line + 20, 20:180] = 1
    with pytest.raises(cut.TooManyLines, match="it has 33 lines of text, at most 32 can be read at a time"):
        cut.cut(np.zeros((33 * 40, 200, 3), np.uint8), is_text)


def test_what_is_upside_down_is_turned_within_its_width() -> None:
    lines = np.zeros((2, 3, 48, 5), np.float32)
    lines[:, :, 0, :3] = [1, 2, 3]
    directions = np.array([[0.95, 0.05], [0.05, 0.95]], np.float32)
    upright, was_upside_down = turn.turned(lines, np.array([3, 3]), directions)
    assert was_upside_down.tolist() == [False, True]
    assert upright[0].tolist() == lines[0].tolist()
    assert upright[1, 0, 47].tolist() == [3, 2, 1, 0, 0]
    assert upright[1, 0, :47].sum() == 0


def test_the_models_take_as_many_lines_as_the_cut_gives(server: LocalServer) -> None:
    for name in ("ocr_direction", "ocr_recognition"):
        assert f"max_batch_size: {cut.MOST_LINES}\n" in (server.repository / name / "config.pbtxt").read_text()


@pytest.mark.e2e
async def test_a_page_is_read_in_one_request(repository: Path, tmp_path: Path) -> None:
    """The server is told to load the ensemble, and loads what that needs; both protocols; also a page without text."""
    Image.new("RGB", (640, 480), "white").save(tmp_path / "empty.png")
    explicit = dataclasses.replace(settings(repository), model_control_mode="explicit", load_model=("ocr_page",))
    async with open_server(explicit) as server:
        for protocol in ("http", "grpc"):
            client = ["examples/clients/ocr_page.py", "-i", protocol, "-u", url(server, protocol)]
            page = await run_script(*client)
            assert (page.returncode, page.stderr.decode()) == (0, "")
            lines = page.stdout.decode().splitlines()
            assert [line.split("  (")[0].replace(" ", "") for line in lines] == [
                text.replace(" ", "") for text, _ in ocr.PAGE_LINES
            ]
            assert ["upside down" in line for line in lines] == [False] * 4 + [True]
            empty = await run_script(*client, "--image", str(tmp_path / "empty.png"))
            assert (empty.returncode, empty.stdout.decode()) == (0, "no text found\n")
