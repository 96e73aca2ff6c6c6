"""Pictures of a request: base64 texts to pixels, within bounds.

A small file may be a picture of any size: its size is looked at before anything is unpacked.
"""

from __future__ import annotations

import base64
import binascii
import io
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from backends.engines.worker.trioton_engine.engine import Image
from protocol.errors import InvalidArgument, Overloaded, Unsupported

# Of one request.
MAX_IMAGES = 16
MAX_PIXELS = 1 << 24
# Bytes of all pixels that one engine's requests hold.
MAX_HELD = 1 << 29
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


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
        if self.held + size > self._most:
            raise Overloaded(f"{where}: the pictures of its requests take more than {self._most} bytes")
        held = Images(tuple(images))
        self.held += size
        weakref.finalize(held, self._release, size)
        return held

    def _release(self, size: int) -> None:
        self.held -= size


def decode_images(texts: Sequence[bytes], where: str) -> list[Image]:
    """Blocks: called in a thread.

    Raises:
    InvalidArgument: one is no picture, or they are too large.
    Unsupported: the package for that is not installed.
    """
    if len(texts) > MAX_IMAGES:
        raise InvalidArgument(f"{where}: image: expected at most {MAX_IMAGES} pictures, got {len(texts)}")
    images: list[Image] = []
    room = MAX_PIXELS
    for place, text in enumerate(texts):
        images.append(_decoded(text, room, f"{where}: image[{place}]"))
        room -= images[-1].width * images[-1].height
    return images


def _decoded(text: bytes, room: int, place: str) -> Image:
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
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{place}: expected a picture in base64, got {text[:40]!r}") from None
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
