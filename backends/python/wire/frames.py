"""Parser of a worker's frames. Pure; validates everything that a worker sends.

The format is described in `worker.trioton_worker.frames`. Whatever is not as described there is `BrokenFrame`. `heads`
says what heads have, `tensor_columns`, `schemas` and `batch` what stands in the rest.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from backends.python.worker.trioton_worker.frames import FROM_WORKER, MAGIC, PREFIX, pack

# No frame is larger; a length beyond it is taken for garbage.
MOST_BODY_BYTES = 1 << 33
_MOST_META_BYTES = 1 << 28
# To copy the parts of a smaller frame, and its tensors again, costs less than views of them.
_COPIED_SIZE = 16384

_PREFIX_SIZE = PREFIX.size
_read_prefix = PREFIX.unpack_from

T = TypeVar("T")


class BrokenFrame(Exception):
    """A worker sent an invalid frame; nothing more is read from it."""


class Frame(msgspec.Struct, eq=False):
    """One frame of a worker, in views of what was received, or small copies of it."""

    kind: int
    column: memoryview
    schemas: bytes | memoryview
    head: bytes | memoryview
    body: bytes | memoryview


def encode(kind: int, head: dict[str, Any]) -> bytes:
    """A frame with nothing but a head."""
    return pack(kind, msgspec.json.encode(head))


class FrameReader:
    """Bytes in, frames out. Holds what is not yet a whole frame, so reading may stop anywhere and go on later."""

    def __init__(self) -> None:
        self._data = b""
        self._position = 0  # where in it the next frame begins
        self._later: list[bytes] = []  # what came after it
        self.missing = _PREFIX_SIZE  # what the next frame still needs, at least

    def next_frame(self, data: bytes = b"") -> Frame | None:
        """The next whole frame, now that this has come too. There is another one only where nothing is `missing`.

        Raises:
            BrokenFrame: these are no frames of a worker.
        """
        if data:
            if self._position == len(self._data):
                self._data, self._position = data, 0
            else:
                self._later.append(data)
            self.missing -= len(data)
        if self.missing > 0:
            return None
        if self._later:
            self._data = b"".join((self._data[self._position :], *self._later))
            self._position = 0
            self._later = []
        data, start = self._data, self._position
        magic, kind, column_size, schemas_size, head_size, body_size = _read_prefix(data, start)
        if magic != MAGIC or kind not in FROM_WORKER or column_size % 8:
            raise BrokenFrame(f"its frame begins with {data[start : start + _PREFIX_SIZE]!r}")
        meta_size = column_size + schemas_size + head_size
        if meta_size > _MOST_META_BYTES or body_size > MOST_BODY_BYTES:
            raise BrokenFrame(f"its frame claims {column_size} + {schemas_size} + {head_size} + {body_size} bytes")
        column_start = start + _PREFIX_SIZE
        schemas_start = column_start + column_size
        head_start = schemas_start + schemas_size
        head_end = column_start + meta_size
        body_start = head_end + -meta_size % 16
        end = body_start + body_size
        behind = len(data) - end
        if behind < 0:
            self.missing = -behind
            return None
        self._position = end
        self.missing = _PREFIX_SIZE - behind
        view = memoryview(data)
        parts = data if end - start <= _COPIED_SIZE else view
        return Frame(
            kind,
            view[column_start:schemas_start],
            parts[schemas_start:head_start],
            parts[head_start:head_end],
            parts[body_start:end],
        )


def decode_head(frame: Frame, head_type: type[T]) -> T:
    """The head, typed.

    Raises:
        BrokenFrame: it does not have these fields.
    """
    try:
        return msgspec.json.decode(frame.head if len(frame.head) else b"{}", type=head_type)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BrokenFrame(f"its frame of kind {frame.kind} has the head {bytes(frame.head[:200])!r}: {error}") from None
