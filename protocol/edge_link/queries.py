"""Queries of an edge process: short exchanges with the core, in which the process waits, and what is kept of them."""

from __future__ import annotations

import select
import socket
import time
from typing import Any, NamedTuple

from protocol.edge_link.errors import NotLinked
from protocol.edge_link.frames import BrokenFrame, Burst, Frame, FrameReader
from protocol.edge_link.generation import ModelCounts, SeenGeneration
from protocol.edge_link.operations import QUERIES, decode_result, encode_operation
from protocol.edge_link.records import QUERY
from protocol.edge_link.texts import decode_error
from protocol.errors import Unavailable

_READ_BYTES = 1 << 18
# Results that are kept; with more, all are dropped.
_MOST_KEPT = 4096
# The longest time that anything is: a change that the generation has missed is seen then.
_KEPT_SECONDS = 1.0
# The longest time that what `is_brief` is.
_BRIEF_SECONDS = 0.1
# What is looked for ahead of a request is known for so long.
_WHILE_SECONDS = 0.25


def wait_for(control: socket.socket, events: int, deadline: float) -> None:
    """Raises TimeoutError."""
    left = deadline - time.monotonic()
    poll = select.poll()
    poll.register(control, events)
    if left <= 0 or not poll.poll(1000 * left):
        raise TimeoutError


class _Kept(NamedTuple):
    """A result, and how often its model had changed before it was asked for."""

    result: Any
    counts: ModelCounts


class Queries:
    """`control` is the edge's end of the second socket, `seen` the core's generation: without one nothing is kept. An
    exchange takes `seconds` at most. `wait` is how it waits: a test with both sides in one thread replaces it."""

    def __init__(self, control: socket.socket, seen: SeenGeneration | None, seconds: float) -> None:
        control.setblocking(False)
        self._socket = control
        self._seen = seen
        self.seconds = seconds
        self._reader = FrameReader()
        self._frames: list[Frame] = []
        self._number = 0
        self.wait = wait_for
        self._kept: dict[tuple[str, tuple[Any, ...]], _Kept] = {}
        self._kept_until = 0.0
        self._brief: dict[tuple[str, tuple[Any, ...]], _Kept] = {}
        self._brief_until = 0.0

    def ask(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """The result of a query. What must not be changed by whoever gets it is kept, so nobody does.

        Raises:
            ServerError: the core says so.
            Unavailable: it has not answered in time.
        """
        if QUERIES[name].is_brief:
            return self._ask_brief(name, arguments)
        if not QUERIES[name].is_kept:
            return self._exchange(name, arguments)
        counts = self.counts(arguments)
        kept = self._known(name, arguments, counts)
        if kept is None:
            kept = _Kept(self._exchange(name, arguments), counts)
            self.keep(name, arguments, *kept)
        return kept.result

    def _ask_brief(self, name: str, arguments: tuple[Any, ...]) -> Any:
        now, key, counts = time.monotonic(), (name, arguments), self.counts(arguments)
        if now >= self._brief_until or len(self._brief) >= _MOST_KEPT:
            self._brief.clear()
            self._brief_until = now + _BRIEF_SECONDS
        kept = self._brief.get(key)
        if self._seen is None or kept is None or kept.counts != counts:
            kept = self._brief[key] = _Kept(self._exchange(name, arguments), counts)
        return kept.result

    def counts(self, arguments: tuple[Any, ...]) -> ModelCounts:
        """How often what is asked for with these arguments has changed, of which a model's name is the first; without
        any, all models."""
        return (0, 0) if self._seen is None else self._seen.of_model(arguments[0] if arguments else "")

    def knows(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a query can be answered from what is kept, and for a while to come."""
        return self._known(name, arguments, self.counts(arguments), _WHILE_SECONDS) is not None

    def recall(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """What was kept by `keep`; None for nothing."""
        kept = self._known(name, arguments, self.counts(arguments))
        return None if kept is None else kept.result

    def keep(self, name: str, arguments: tuple[Any, ...], result: Any, counts: ModelCounts) -> None:
        """What was asked for when it had changed so often."""
        if self._seen is not None and counts == self.counts(arguments):
            self._kept[name, arguments] = _Kept(result, counts)

    def _known(self, name: str, arguments: tuple[Any, ...], counts: ModelCounts, seconds: float = 0.0) -> _Kept | None:
        """What is kept, unless it may be wrong by now, or within these seconds."""
        now = time.monotonic()
        if now + seconds >= self._kept_until or len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
            self._kept_until = now + _KEPT_SECONDS
        kept = self._kept.get((name, arguments))
        return kept if kept is not None and kept.counts == counts else None

    def close(self) -> None:
        self._socket.close()
        if self._seen is not None:
            self._seen.close()

    def _exchange(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self._number += 1
        burst = Burst()
        burst.numbers += QUERY, self._number, burst.add_text(encode_operation(name, arguments))
        deadline = time.monotonic() + self.seconds
        try:
            self._send(b"".join(burst.take()), deadline)
            while True:
                frame = self._receive(deadline)
                kind, number, is_good, size = frame.take(4)
                if kind != QUERY:
                    raise BrokenFrame(f"it answered with a record of kind {kind}")
                if number == self._number:  # else the answer to one that was given up
                    break
            text = frame.take_text(size)
            if is_good:
                return decode_result(text, QUERIES[name])
            error = decode_error(text)
        except TimeoutError:
            raise Unavailable(f"the server has not answered within {self.seconds:g} s") from None
        except OSError as failure:
            raise Unavailable("Server exiting") from failure
        except BrokenFrame as failure:
            raise NotLinked(f"the server's answer is invalid: {failure}") from failure
        raise error

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while len(view):
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self.wait(self._socket, select.POLLOUT, deadline)

    def _receive(self, deadline: float) -> Frame:
        while not self._frames:
            room = self._reader.room
            try:
                if room is None:
                    data = self._socket.recv(_READ_BYTES)
                    count = len(data)
                    self._frames += self._reader.take(data)
                else:
                    count = self._socket.recv_into(room)
                    if (found := self._reader.fill(count)) is not None:
                        self._frames.append(found)
            except BlockingIOError:
                self.wait(self._socket, select.POLLIN, deadline)
                continue
            if not count:
                raise ConnectionResetError("the core has gone")
        return self._frames.pop(0)
