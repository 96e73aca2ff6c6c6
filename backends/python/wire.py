"""The frames of a worker, as the server reads them: a pure codec, which trusts nothing that a worker sends.

The format is described in `worker.trioton_worker.frames`. Whatever is not as described there is `BrokenFrame`.
`batch` has what batches put into their frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from backends.python.worker.trioton_worker.frames import (
    DONE,
    EXECUTED,
    FAILED,
    LOG,
    LOG_LEVELS,
    MAGIC,
    PREFIX,
    pack,
)
from protocol.messages import ParameterValue

# No answer is larger; a length beyond it is taken for garbage.
MOST_BODY_BYTES = 1 << 33
_MOST_META_BYTES = 1 << 28

_ANSWER_KINDS = frozenset({DONE, FAILED, EXECUTED, LOG})

T = TypeVar("T", bound="Head")


class BrokenFrame(Exception):
    """A worker sent what no worker sends; it is not to be listened to any more."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a worker. `column` and `body` are views of what was received."""

    kind: int
    column: memoryview
    head: memoryview
    body: memoryview


class Head(msgspec.Struct, forbid_unknown_fields=True):
    """Base of the heads of a worker's frames."""


class DoneHead(Head):
    """`config` is JSON text, or None where the model has no `auto_complete_config`."""

    config: str | None = None


class FailedHead(Head):
    message: str
    traceback: str = ""


class LogHead(Head):
    level: int
    message: str
    filename: str
    line: int


class ExecutedHead(Head):
    """`shared` is the byte size of the outputs in their segment, 0 where they are in the body."""

    names: list[str] = []
    errors: list[tuple[int, int, str]] = []
    parameters: list[tuple[int, dict[str, ParameterValue]]] = []
    shared: int = 0
    kept: bool = False
    wanted: int = 0
    failure: FailedHead | None = None


def encode(kind: int, head: dict[str, Any]) -> bytes:
    """A frame that is nothing but its head."""
    return pack(kind, msgspec.json.encode(head))


class FrameReader:
    """Bytes in, frames out. Holds what is not yet a whole frame, so reading may stop anywhere and go on later."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._needed = PREFIX.size

    @property
    def missing(self) -> int:
        """How many bytes the next frame needs at least."""
        return self._needed - self._size

    def feed(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)

    def next_frame(self) -> Frame | None:
        """The next whole frame.

        Raises:
            BrokenFrame: these are no frames of a worker.
        """
        if self._size < self._needed:
            return None
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        magic, kind, column_size, head_size, body_size = PREFIX.unpack_from(data)
        if magic != MAGIC or kind not in _ANSWER_KINDS or column_size % 8:
            raise BrokenFrame(f"its frame begins with {data[: PREFIX.size]!r}")
        if column_size + head_size > _MOST_META_BYTES or body_size > MOST_BODY_BYTES:
            raise BrokenFrame(f"its frame claims {column_size} + {head_size} + {body_size} bytes")
        head_start = PREFIX.size + column_size
        body_start = head_start + head_size
        end = body_start + body_size
        if self._size < end:
            self._chunks = [data]
            self._needed = end
            return None
        self._chunks = [data[end:]] if self._size > end else []
        self._size -= end
        self._needed = PREFIX.size
        view = memoryview(data)
        return Frame(kind, view[PREFIX.size : head_start], view[head_start:body_start], view[body_start:end])


def decode_head(frame: Frame, form: type[T]) -> T:
    """The head, typed.

    Raises:
        BrokenFrame: it does not have this form.
    """
    try:
        return msgspec.json.decode(frame.head, type=form)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BrokenFrame(f"its frame of kind {frame.kind} has the head {bytes(frame.head[:200])!r}: {error}") from None


def log_level_name(head: LogHead) -> str:
    """The name of a message's level in Triton's API."""
    if not 0 <= head.level < len(LOG_LEVELS):
        raise BrokenFrame(f"its log message has the level {head.level}")
    return LOG_LEVELS[head.level]
