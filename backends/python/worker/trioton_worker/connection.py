"""The worker's end of the socket: sends and receives whole frames, with file descriptors of segments."""

from __future__ import annotations

import array
import json
import mmap
import os
import select
import socket
import threading
from collections import deque
from contextlib import suppress
from struct import unpack_from
from typing import Any, Callable, Dict, Sequence, Union

import numpy as np

from .frames import COLUMNS, MAGIC, PREFIX, pack

Buffer = Union[bytes, bytearray, memoryview]
Head = Dict[str, Any]

# Python takes fresh memory for each read; for more than this it must ask the system each time.
_READ_SIZE = 1 << 16
_JOINED_SIZE = 1 << 18
_MOST_BUFFERS = 512  # of one sendmsg call; systems allow 1024
_ANCILLARY_SIZE = socket.CMSG_SPACE(4 * array.array("i").itemsize)
_SAMPLE = {"é": [1, 2.5, True, None, "\n\u2028"], "b": {"c": []}}


def _json_encoder() -> Callable[[object], str]:
    """JSON text of what has no cycles. `JSONEncoder` makes its C encoder anew for each text, which takes most of the
    time of a short one; this one is kept, where it is still understood in its old form."""
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    plain: Callable[[object], str] = encoder.encode
    try:
        made: Any = json.encoder.c_make_encoder(  # type: ignore[attr-defined]  # CPython's own
            None, encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, True
        )

        def encode(value: object) -> str:
            return "".join(made(value, 0))

        return encode if encode(_SAMPLE) == plain(_SAMPLE) else plain
    except (AttributeError, TypeError):
        return plain


_json = _json_encoder()
_decode_json = json.JSONDecoder().raw_decode
# As plain numbers: to join two of the socket module's own flags takes as long as to read a small frame.
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_AT_ONCE = _CLOSE_ON_EXEC | int(socket.MSG_DONTWAIT)


class Frame:
    """`body` is memory of its own: arrays over it live as long as they are held."""

    __slots__ = ("body", "column", "head", "kind", "schemas")

    def __init__(self, kind: int, column: Sequence[int], schemas: bytes, head: Head, body: Any) -> None:
        self.kind = kind
        self.column = column
        self.schemas = schemas
        self.head = head
        self.body = body


def encode_json(value: object) -> bytes:
    """JSON text that any decoder takes: what is no valid text (lone surrogates) becomes question marks."""
    return _json(value).encode("utf-8", "replace")


class Connection:
    """`receive` is for one thread at a time (see `switchboard`); `send` for any."""

    def __init__(self, control: socket.socket) -> None:
        self._socket = control
        self._owner = os.getpid()
        self._sending = threading.Lock()
        self._unsent: deque[bytes] = deque()
        self._descriptors: deque[int] = deque()
        self._ahead = b""  # received behind the last frame
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    @property
    def is_usable(self) -> bool:
        """Whether this process is the worker: a forked child has the socket as well, but may not speak on it."""
        return os.getpid() == self._owner

    def check_may_wait(self, what: str) -> None:
        """Raise TritonModelException where the running thread must not wait for the server."""

    def answer_at_once(self, head: Head) -> Head | None:
        """The head of the server's answer to a CALL with this head; None where it is to be sent, and waited for."""
        return None

    def hang_up(self) -> None:
        """Close both directions."""
        with suppress(OSError):  # the server was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        return self._socket.fileno()

    def is_readable(self) -> bool:
        """Whether a frame has come, or has begun to."""
        return bool(self._ahead) or bool(self._poll.poll(0))

    @property
    def is_ahead(self) -> bool:
        """Whether some of the next frame was received with the last one."""
        return bool(self._ahead)

    def has_begun(self) -> bool:
        """As `is_readable`, for whoever is to call `receive` then: the first of it is received already."""
        if not self._ahead:
            try:
                self._ahead = self._receive_some(_AT_ONCE)
            except BlockingIOError:
                return False
        return True

    def receive(self) -> Frame | None:
        """The next frame; None when the server has closed its end."""
        data = self._ahead
        while len(data) < PREFIX.size:
            more = self._receive_some()
            if not more:
                return None
            data = data + more if data else more
        magic, kind, column_size, schemas_size, head_size, body_size = PREFIX.unpack_from(data)
        if magic != MAGIC:
            raise ConnectionError("the server sent something that is no frame")
        schemas_start = PREFIX.size + column_size
        head_start = schemas_start + schemas_size
        head_end = head_start + head_size
        body_start = (head_end + 15) & -16
        while len(data) < body_start:
            more = self._receive_some()
            if not more:
                return None
            data += more
        body_end = body_start + body_size
        body: Any
        if len(data) >= body_end:
            body = bytearray(data[body_start:body_end])
            self._ahead = data[body_end:]
        else:
            body = np.empty(body_size, np.uint8)
            here = len(data) - body_start
            body[:here] = np.frombuffer(data, np.uint8, here, body_start)
            if not self._receive_into(body.data[here:]):
                return None
            self._ahead = b""
        column = unpack_from(f"{column_size >> 3}q", data, PREFIX.size)
        head = _decode_json(str(data[head_start:head_end], "utf-8"))[0] if head_size else {}
        return Frame(kind, column, data[schemas_start:head_start], head, body)

    def next_segment(self) -> mmap.mmap:
        """Map the segment that came first of those not taken yet."""
        descriptor = self._descriptors.popleft()
        try:
            return mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def send(
        self,
        kind: int,
        head: Head,
        column: Sequence[int] = (),
        schemas: bytes = b"",
        body: Sequence[Buffer] = (),
        body_size: int = 0,
    ) -> None:
        """Send one frame; `body` holds `body_size` bytes in all. Raises OSError when the server has gone."""
        numbers = COLUMNS[len(column)](*column)
        start = pack(kind, encode_json(head) if head else b"", numbers, schemas, body_size)
        if body_size <= _JOINED_SIZE:
            self.send_frame(b"".join((start, *body)))
        else:
            self.send_frame(start, body)

    def send_frame(self, frame: Buffer, rest: Sequence[Buffer] = ()) -> None:
        """Send one frame that is packed already, or its begin and the rest. Raises OSError when the server has gone."""
        if os.getpid() != self._owner:
            raise OSError("a process that the model has forked cannot speak to the server")
        with self._sending:
            while self._unsent:  # perhaps this thread's own, which come before
                self._socket.sendall(self._unsent.popleft())
            self._socket.sendall(frame)
            if rest:
                self._send_parts(rest)
        if self._unsent:
            self._send_unsent()

    def send_from_anywhere(self, kind: int, head: Head) -> None:
        """Send a small frame, also from a finalizer that runs in the middle of this thread's own `send`: then that one
        sends it. Raises nothing."""
        if self.is_usable:
            self._unsent.append(pack(kind, encode_json(head)))
            self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent and self._sending.acquire(False):
            try:
                with suppress(OSError):  # the server has gone
                    while self._unsent:
                        self._socket.sendall(self._unsent.popleft())
            finally:
                self._sending.release()

    def _send_parts(self, parts: Sequence[Buffer]) -> None:
        buffers = [memoryview(part) for part in parts if len(part)]
        while buffers:
            sent = self._socket.sendmsg(buffers[:_MOST_BUFFERS])
            done = 0
            while done < len(buffers) and sent >= len(buffers[done]):
                sent -= len(buffers[done])
                done += 1
            del buffers[:done]
            if sent:
                buffers[0] = buffers[0][sent:]

    def _receive_some(self, flags: int = _CLOSE_ON_EXEC) -> bytes:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_SIZE, _ANCILLARY_SIZE, flags)
        except ConnectionError:
            return b""
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors = array.array("i")
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
                self._descriptors.extend(descriptors)
        return data

    def _receive_into(self, view: memoryview) -> bool:
        while len(view):
            try:
                count = self._socket.recv_into(view)
            except ConnectionError:
                return False
            if not count:
                return False
            view = view[count:]
        return True
