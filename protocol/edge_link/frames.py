"""Frames of a link: parser and encoder. Pure; validates everything that the other side sends.

    frame    = prefix, numbers, texts, padding, data, padding
    prefix     MAGIC, how many numbers, and the lengths of texts and data in bytes
    numbers    64-bit signed integers in the machine's byte order: the records, one after the other
    texts      what records have that is no tensor, in their order
    data       the bytes of the tensors that do not cross in shared memory, in the records' order
    padding    so that data, and the next frame, begin at a multiple of 16

One frame has all that a side has to say at a time (a burst). `records` says what records there are.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping

import msgspec

from protocol.messages import Buffer

MAGIC = b"TrEl"
PREFIX = struct.Struct("=4sIQQ8x")  # MAGIC, count of numbers, bytes of texts, bytes of data
PREFIX_SIZE = PREFIX.size
# No frame is larger; a length beyond it is taken for garbage.
MOST_BYTES = 1 << 33

_ALIGNMENT = 16
_PADDINGS = tuple(bytes(size) for size in range(_ALIGNMENT))
_read_prefix = PREFIX.unpack_from


class BrokenFrame(Exception):
    """The other side has sent what is invalid; nothing more is read from it."""


class Burst:
    """What is to go out in the next frame. Whoever adds to `texts` or `data` adds to their sizes, too."""

    __slots__ = ("data", "data_size", "numbers", "text_size", "texts")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.numbers: list[int] = []
        self.texts: list[bytes] = []
        self.data: list[Buffer] = []
        self.text_size = 0
        self.data_size = 0

    def add_text(self, text: bytes) -> int:
        """Returns its length."""
        self.texts.append(text)
        self.text_size += len(text)
        return len(text)

    @property
    def size(self) -> int:
        """Of the frame, in bytes."""
        meta = 8 * len(self.numbers) + self.text_size
        return PREFIX_SIZE + meta + -meta % _ALIGNMENT + self.data_size + -self.data_size % _ALIGNMENT

    def take(self) -> list[Buffer]:
        """The frame, in parts; what was added is gone from here."""
        numbers = array("q", self.numbers).tobytes()
        start = PREFIX.pack(MAGIC, len(self.numbers), self.text_size, self.data_size)
        parts: list[Buffer] = [start, numbers, *self.texts]
        padding = -(len(numbers) + self.text_size) % _ALIGNMENT
        if padding:
            parts.append(_PADDINGS[padding])
        parts += self.data
        padding = -self.data_size % _ALIGNMENT
        if padding:
            parts.append(_PADDINGS[padding])
        self.clear()
        return parts


class Frame(msgspec.Struct, eq=False):
    """One frame, read from front to back: records are in `numbers`, from `position` on."""

    numbers: list[int]
    texts: memoryview
    data: memoryview
    position: int = 0
    text_at: int = 0
    data_at: int = 0

    @property
    def has_more(self) -> bool:
        return self.position < len(self.numbers)

    def take(self, count: int) -> list[int]:
        """The next numbers. Raises BrokenFrame: there are not so many."""
        start = self.position
        end = start + count
        if count < 0 or end > len(self.numbers):
            raise BrokenFrame(f"its frame has {len(self.numbers)} numbers, but {count} from the {start + 1}th on")
        self.position = end
        return self.numbers[start:end]

    def take_text(self, size: int) -> memoryview:
        """The next text. Raises BrokenFrame: there is none of this size."""
        start = self.text_at
        end = start + size
        if size < 0 or end > len(self.texts):
            raise BrokenFrame(f"its frame has texts of {len(self.texts)} bytes, but one of {size} from {start} on")
        self.text_at = end
        return self.texts[start:end]

    def take_data(self, size: int) -> memoryview:
        """The next data. Raises BrokenFrame: there are not so many bytes."""
        start = self.data_at
        end = start + size
        if size < 0 or end > len(self.data):
            raise BrokenFrame(f"its frame has {len(self.data)} bytes of data, but {size} from {start} on")
        self.data_at = end
        return self.data[start:end]

    def check_end(self) -> None:
        """All of it was read. Raises BrokenFrame: something is left."""
        if self.text_at != len(self.texts) or self.data_at != len(self.data):
            left = len(self.texts) - self.text_at, len(self.data) - self.data_at
            raise BrokenFrame(f"its frame has {left[0]} bytes of texts and {left[1]} of data that no record names")


class FrameReader:
    """Bytes in, frames out. A frame that comes in pieces is put together in place: `room` is there to be filled."""

    __slots__ = ("_filled", "_large", "_most", "_rest")

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._rest = b""  # less than a prefix
        self._large: bytearray | None = None
        self._filled = 0

    @property
    def room(self) -> memoryview | None:
        """Where what is missing of a frame is to be put, with `fill` called behind it; None where `take` is to get what
        comes."""
        return None if self._large is None else memoryview(self._large)[self._filled :]

    def fill(self, count: int) -> Frame | None:
        """So many bytes of `room` are there now; the frame, once it is whole. Raises BrokenFrame."""
        large = self._large
        assert large is not None
        self._filled += count
        if self._filled < len(large):
            return None
        self._large = None
        data = memoryview(large).toreadonly()
        return _parse(data, *_read_prefix(data))

    def take(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole with this. Has to be exhausted. Raises BrokenFrame."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        view = memoryview(data)
        position, end = 0, len(data)
        while end - position >= PREFIX_SIZE:
            found = _read_prefix(data, position)
            size = self._size(*found)
            if position + size > end:
                self._large = large = bytearray(size)
                self._filled = end - position
                large[: self._filled] = view[position:]
                return
            yield _parse(view[position : position + size], *found)
            position += size
        self._rest = data[position:]

    def _size(self, magic: bytes, count: int, text_size: int, data_size: int) -> int:
        meta = 8 * count + text_size
        if magic != MAGIC or meta > self._most or data_size > self._most:
            raise BrokenFrame(f"its frame begins with {magic!r}, {count} numbers, {text_size} + {data_size} bytes")
        return PREFIX_SIZE + meta + -meta % _ALIGNMENT + data_size + -data_size % _ALIGNMENT


def _parse(view: memoryview, magic: bytes, count: int, text_size: int, data_size: int) -> Frame:
    """The frame in this, which has its size."""
    texts_at = PREFIX_SIZE + 8 * count
    text_end = texts_at + text_size
    data_at = text_end + -(text_end - PREFIX_SIZE) % _ALIGNMENT
    numbers: list[int] = view[PREFIX_SIZE:texts_at].cast("q").tolist()
    return Frame(numbers, view[texts_at:text_end], view[data_at : data_at + data_size])


def take_records(frame: Frame, handlers: Mapping[int, Callable[[Frame], None]]) -> None:
    """Pass each record of a frame to the handler of its kind, which takes what belongs to it. Raises BrokenFrame."""
    while frame.has_more:
        (kind,) = frame.take(1)
        handler = handlers.get(kind)
        if handler is None:
            raise BrokenFrame(f"its record is of kind {kind}")
        handler(frame)
    frame.check_end()
