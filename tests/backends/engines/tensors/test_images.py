"""Pictures of requests: what is one, how large they may be together, and what is held."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image as Pillow

from backends.engines.tensors.images import MAX_IMAGES, MAX_PIXELS, ImageRoom, decode_images
from backends.engines.worker.trioton_engine.engine import Image
from protocol.errors import InvalidArgument, Overloaded


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
    (found,) = decode_images([encoded(picture, kind)], "m")
    assert found == Image(3, 2, b"\xff\0\0" * 5 + b"\0\0\xff")


def test_pictures_are_turned_as_they_say() -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6  # its top is on the right
    (found,) = decode_images([encoded(Pillow.new("L", (4, 2)), "JPEG", exif=exif)], "m")
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
        ([b""] * (MAX_IMAGES + 1), f"expected at most {MAX_IMAGES} pictures, got {MAX_IMAGES + 1}"),
    ],
)
def test_what_is_no_picture(texts: list[bytes], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decode_images(texts, "m")


def test_what_is_held_is_bounded_and_let_go() -> None:
    room = ImageRoom(most=20)
    held = room.hold([Image(2, 2, bytes(12))], "m")
    with pytest.raises(Overloaded, match="m: the pictures of its requests take more than 20 bytes"):
        room.hold([Image(3, 1, bytes(9))], "m")
    assert room.held == 12
    del held
    assert room.held == 0
