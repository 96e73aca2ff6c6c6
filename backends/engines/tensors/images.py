"""Pictures of a request: files in base64, and arrays of pixels, to pictures for an engine, within bounds.

A small file may be a picture of any size: its size is looked at before anything is unpacked.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.engines.worker.trioton_engine.engine import Image
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, Overloaded, Unsupported
from protocol.messages import Tensor, decode_bytes_elements

# Of one request.
MAX_IMAGES = 16
MAX_PIXELS = 1 << 24
# Bytes of all pixels that one engine's requests hold.
MAX_HELD = 1 << 29
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_DATA_URL = re.compile(rb"data:image/[\w.+-]+;base64,", re.IGNORECASE)
_WEB_URL = re.compile(rb"https?://", re.IGNORECASE)


class Given(NamedTuple):
    """A picture as a client gives it, in an input: a file in base64, a URL, or pixels, of which the last axis is the
    color; or a file that was fetched."""

    input: str
    data: bytes | str | NDArray[Any] | bytearray


def given_files(tensor: Tensor, where: str) -> list[Given]:
    """An empty text is no picture: clients send one in place of none. Raises InvalidArgument: there are too many."""
    _check_count(tensor.element_count, tensor, where)
    return [Given(tensor.name, each) for each in decode_bytes_elements(tensor.data) if each]


def given_urls(tensor: Tensor, where: str) -> list[Given]:
    """Those with the data in them, and others, which have to be fetched. Raises InvalidArgument."""
    return [Given(tensor.name, _of_url(each.data, tensor, where)) for each in given_files(tensor, where)]


def _of_url(url: Any, tensor: Tensor, where: str) -> bytes | str:
    if _DATA_URL.match(url):
        found: bytes = url.partition(b",")[2]
        return found
    if _WEB_URL.match(url):
        return str(url, "utf-8", "replace")
    raise InvalidArgument(
        f"{where}: {tensor.name}: expected a data URL with a picture in base64 (data:image/png;base64,…), or an http "
        f"or https URL, got {url[:40]!r}"
    )


def given_pixels(tensor: Tensor, where: str) -> list[Given]:
    """As Triton's clients of TensorRT-LLM give them: one or more pictures with the axes height, width, color, or color,
    height, width.

    Raises:
        InvalidArgument: it is no such array.
    """
    shape = tensor.shape
    is_last, is_first = shape[-1:] == (3,), shape[-3:-2] == (3,)
    if tensor.datatype is not DataType.UINT8 or len(shape) < 3 or not (is_last or is_first):
        raise InvalidArgument(
            f"{where}: {tensor.name}: expected UINT8 with the axes picture, height, width, 3 (or 3, height, width), "
            f"got {tensor.datatype.name} {list(shape)}"
        )
    _check_count(math.prod(shape[:-3]), tensor, where)
    if 0 in shape:
        raise InvalidArgument(f"{where}: {tensor.name}: expected pictures, got the axes {list(shape)}")
    pixels = tensor.as_numpy().reshape(-1, *shape[-3:])
    return [Given(tensor.name, each) for each in (pixels if is_last else np.moveaxis(pixels, 1, -1))]


@dataclass(frozen=True)
class Images:
    """The pictures of one request. Their memory counts as held as long as this object lives."""

    images: Sequence[Image] = ()


NO_IMAGES = Images()


class ImageRoom:
    """How much memory the pictures of an engine's requests may take. Called on the server's loop."""

    def __init__(self, most: int = MAX_HELD) -> None:
        self.held = 0
        self._most = most

    def hold(self, images: Sequence[Image], where: str) -> Images:
        """Raises Overloaded: there is no room for them now."""
        size = sum(len(each.pixels) for each in images)
        self.take(size, where)
        held = Images(tuple(images))
        weakref.finalize(held, self.give, size)
        return held

    def take(self, size: int, where: str) -> None:
        """Raises Overloaded."""
        if self.held + size > self._most:
            raise Overloaded(f"{where}: the pictures of its requests take more than {self._most} bytes")
        self.held += size

    def give(self, size: int) -> None:
        self.held -= size


def _check_count(count: int, tensor: Tensor, where: str) -> None:
    if count > MAX_IMAGES:
        raise InvalidArgument(f"{where}: {tensor.name}: expected at most {MAX_IMAGES} pictures, got {count}")


def decode_images(given: Sequence[Given], where: str) -> list[Image]:
    """Blocks: called in a thread.

    Raises:
    InvalidArgument: one is no picture, or they are too large.
    Unsupported: the package for that is not installed.
    """
    images: list[Image] = []
    room = MAX_PIXELS
    for number, (name, data) in enumerate(given):
        place = f"{where}: {name}[{number}]"
        assert not isinstance(data, str), "it has been fetched"
        made = _of_pixels(data, room, place) if isinstance(data, np.ndarray) else _decoded(data, room, place)
        images.append(made)
        room -= made.width * made.height
    return images


def _of_pixels(pixels: NDArray[Any], room: int, place: str) -> Image:
    height, width, _ = pixels.shape
    if width * height > room:
        raise _too_large(place, f"{width} by {height}")
    return Image(width, height, pixels.tobytes())


def _decoded(given: bytes | bytearray, room: int, place: str) -> Image:
    try:
        from PIL import Image as Pillow
        from PIL import ImageOps
    except ImportError:
        raise Unsupported(
            f"{place}: pictures need the package pillow, which is not installed: pip install 'trioton[images]'"
        ) from None
    # Its limit is another one than ours, which is looked at before anything is unpacked.
    warnings.filterwarnings("ignore", category=Pillow.DecompressionBombWarning)
    try:
        data = given if isinstance(given, bytearray) else base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{place}: expected a picture in base64, got {given[:40]!r}") from None
    try:
        with Pillow.open(io.BytesIO(data), formats=_FORMATS) as opened:
            width, height = opened.size
            if width * height > room:
                raise _too_large(place, f"{width} by {height}")
            pixels = ImageOps.exif_transpose(opened).convert("RGB")
            return Image(*pixels.size, pixels.tobytes())
    except InvalidArgument:
        raise
    except Pillow.DecompressionBombError:
        raise _too_large(place, "far more") from None
    except Exception as error:  # whatever a broken file makes Pillow raise
        formats = ", ".join(_FORMATS)
        raise InvalidArgument(
            f"{place}: expected a picture ({formats}), got {len(data)} bytes that are none: {type(error).__name__}"
        ) from None


def _too_large(place: str, size: str) -> InvalidArgument:
    return InvalidArgument(
        f"{place}: the pictures of a request may have {MAX_PIXELS} pixels together, this one has {size}"
    )
