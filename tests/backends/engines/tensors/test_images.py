"""Pictures of requests: what is one, how large they may be together, and what is held."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from backends.engines.tensors.images import (
    MAX_IMAGES,
    MAX_PIXELS,
    Given,
    ImageRoom,
    decode_images,
    given_files,
    given_pixels,
    given_urls,
)
from backends.engines.worker.trioton_engine.engine import Image
from protocol.errors import InvalidArgument, Overloaded
from protocol.messages import Tensor
from tests.backends.helpers import objects


def encoded(picture: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return base64.b64encode(file.getvalue())


def png_head(width: int, height: int) -> bytes:
    """A file that says that it is so large, and has nothing more."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return base64.b64encode(data + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT")))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF"])
def test_pixels(kind: str) -> None:
    picture = Pillow.new("RGB", (3, 2), (255, 0, 0))
    picture.putpixel((2, 1), (0, 0, 255))
    (found,) = decode_images([Given("image", encoded(picture, kind))], "m")
    assert found == Image(3, 2, b"\xff\0\0" * 5 + b"\0\0\xff")


def test_pictures_are_turned_as_they_say() -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6  # its top is on the right
    (found,) = decode_images([Given("image", encoded(Pillow.new("L", (4, 2)), "JPEG", exif=exif))], "m")
    assert (found.width, found.height) == (2, 4)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([b"%%%"], r"m: image\[0\]: expected a picture in base64, got b'%%%'"),
        ([base64.b64encode(b"hello")], r"m: image\[0\]: expected a picture \(PNG, .*\), got 5 bytes that are none"),
        ([png_head(10000, 2000)], f"may have {MAX_PIXELS} pixels together, this one has 10000 by 2000"),
        ([png_head(60000, 60000)], "this one has far more"),
        ([png_head(100, 100)], "that are none"),
        ([encoded(Pillow.new("1", (4096, 2048)))] * 3, r"m: image\[2\]: the pictures of a request may have"),
    ],
)
def test_what_is_no_picture(texts: list[bytes], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decode_images([Given("image", each) for each in texts], "m")


PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)  # two lines of two


@pytest.mark.parametrize(
    "array",
    [
        PIXELS,
        PIXELS[None],
        PIXELS[None, None],
        np.ascontiguousarray(np.moveaxis(PIXELS, -1, 0))[None],
    ],
)
def test_pixels_of_clients_of_tensorrt_llm(array: Any) -> None:
    given = given_pixels(Tensor.from_numpy("image_bytes_input", array), "m")
    assert decode_images(given, "m") == [Image(2, 2, PIXELS.tobytes())]


def test_several_arrays_of_pixels() -> None:
    given = given_pixels(Tensor.from_numpy("x", np.stack([PIXELS[:1], PIXELS[1:]])[None]), "m")
    assert decode_images(given, "m") == [Image(2, 1, PIXELS[:1].tobytes()), Image(2, 1, PIXELS[1:].tobytes())]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (PIXELS[0], r"m: x: expected UINT8 with the axes .* got UINT8 \[2, 3\]"),
        (np.zeros((1, 4, 4, 1), np.uint8), r"got UINT8 \[1, 4, 4, 1\]"),
        (PIXELS.astype(np.float32), r"got FP32 \[2, 2, 3\]"),
        (np.zeros((0, 4, 3), np.uint8), r"x: expected pictures, got the axes \[0, 4, 3\]"),
        (np.broadcast_to(np.uint8(0), (4097, 4096, 3)), r"x\[0\]: the pictures .* this one has 4096 by 4097"),
        (np.zeros((MAX_IMAGES + 1, 1, 1, 3), np.uint8), f"x: expected at most {MAX_IMAGES} pictures, got 17"),
    ],
)
def test_arrays_that_are_no_pictures(array: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decode_images(given_pixels(Tensor.from_numpy("x", np.ascontiguousarray(array)), "m"), "m")


def test_how_many_files() -> None:
    with pytest.raises(InvalidArgument, match=f"m: x: expected at most {MAX_IMAGES} pictures, got {MAX_IMAGES + 1}"):
        given_files(Tensor.from_numpy("x", objects(*[""] * (MAX_IMAGES + 1))), "m")


def test_urls() -> None:
    urls = objects("data:image/jpeg;base64,YQ==", "", "DATA:image/png;BASE64,Yg==", "HTTPS://a/b.png")
    found = given_urls(Tensor.from_numpy("x", urls), "m")
    assert found == [Given("x", b"YQ=="), Given("x", b"Yg=="), Given("x", "HTTPS://a/b.png")]
    for wrong in ("file:///etc/passwd", "data:text/plain;base64,YQ==", "YQ=="):
        with pytest.raises(InvalidArgument, match=r"m: x: expected a data URL .*, or an http or https URL, got b'"):
            given_urls(Tensor.from_numpy("x", objects(wrong)), "m")


def test_a_file_that_was_fetched() -> None:
    picture = base64.b64decode(encoded(Pillow.new("RGB", (3, 2))))
    assert decode_images([Given("x", bytearray(picture))], "m") == [Image(3, 2, bytes(18))]
    with pytest.raises(InvalidArgument, match=r"m: x\[0\]: expected a picture \(PNG, .*\), got 5 bytes that are none"):
        decode_images([Given("x", bytearray(b"hello"))], "m")


def test_what_is_held_is_bounded_and_let_go() -> None:
    room = ImageRoom(most=20)
    held = room.hold([Image(2, 2, bytes(12))], "m")
    with pytest.raises(Overloaded, match="m: the pictures of its requests take more than 20 bytes"):
        room.hold([Image(3, 1, bytes(9))], "m")
    assert room.held == 12
    del held
    assert room.held == 0
