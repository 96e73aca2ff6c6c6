"""The worker of an `in_loop` model: `execute` is called in the event loop's thread, everything else in a thread of the
instance.

Flow: `loaded_model` → `loop_batches` → [this: the instance of the thread] → the model's object. What the model says to
the server meanwhile is handed over by a call: nobody would read the socket.
"""

from __future__ import annotations

import array
import logging
import socket
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import trio

from backends.python.bls.questions import NOT_IN_LOOP, Questions
from backends.python.wire.frames import BrokenFrame, Frame, FrameReader
from backends.python.worker.trioton_worker.connection import Buffer, Connection, Head, encode_json
from backends.python.worker.trioton_worker.errors import TritonModelException
from backends.python.worker.trioton_worker.frames import CALL, METRIC, RESPONSE, pack
from backends.python.workers.in_process import InProcessModel, InProcessWorker
from backends.python.workers.link import WorkerLink

logger = logging.getLogger("trioton.backends.python")

# Changes of metrics that finalizers make, and so in the middle of anything.
_OF_FINALIZERS = frozenset({"drop_family", "drop_metric"})


class InLoopWorker(InProcessWorker):
    """One instance's thread, which runs all but `execute`. To be made in the thread of the loop."""

    def __init__(self, model: InProcessModel, control: socket.socket, name: str) -> None:
        self.hand_over = HandOver()
        super().__init__(model, control, name, self._connect)

    def _connect(self, control: socket.socket) -> Connection:
        return _LoopConnection(control, self.hand_over)


class HandOver:
    """The messages that a model sends from the event loop's thread, as frames like those of a socket. Made in that
    thread.

    `responses` are those that response senders have sent; they wait until the batch that runs is known.
    """

    def __init__(self) -> None:
        self.responses: deque[Frame] = deque()
        self._thread = threading.get_ident()
        self._token = trio.lowlevel.current_trio_token()
        self._link: WorkerLink | None = None
        self._questions: Questions | None = None

    def begin(self, link: WorkerLink, questions: Questions) -> None:
        """From now on somebody takes it."""
        self._link = link
        self._questions = questions

    @property
    def is_here(self) -> bool:
        """Whether the current thread is the event loop's."""
        return threading.get_ident() == self._thread

    def take(self, frame: Frame) -> None:
        if frame.kind == RESPONSE:
            self.responses.append(frame)
        elif self._link is not None:
            self._link.handlers[frame.kind](frame)

    def take_soon(self, frame: Frame) -> None:
        """Take it in a later turn of the loop: called by finalizers, which may run in the middle of anything."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._take_alone, frame)

    def answer(self, frame: Frame) -> Head:
        """The head of the answer to a CALL."""
        assert self._questions is not None  # the model has been loaded
        return self._questions.answer_at_once(frame)

    def _take_alone(self, frame: Frame) -> None:
        assert self._link is not None
        try:
            self._link.handlers[frame.kind](frame)
        except BrokenFrame as broken:
            logger.error("%s: what it says cannot be: %s", self._link.name, broken)
        except Exception as error:  # Trio would end the run by it
            self._link.failures.note("worker", error, f"{self._link.name}: what a finalizer says could not be taken")


class _LoopConnection(Connection):
    """The socket for the model's threads, and a direct call for what is sent in the event loop's."""

    def __init__(self, control: socket.socket, hand_over: HandOver) -> None:
        super().__init__(control)
        self._hand_over = hand_over

    def check_may_wait(self, what: str) -> None:
        if self._hand_over.is_here:
            raise TritonModelException(f"The model cannot be allowed {what}: {NOT_IN_LOOP}")

    def answer_at_once(self, head: Head) -> Head | None:
        if not self._hand_over.is_here:
            return None
        return self._hand_over.answer(_frame(CALL, {**head, "call": 0}))

    def send(
        self,
        kind: int,
        head: Head,
        column: Sequence[int] = (),
        schemas: bytes = b"",
        body: Sequence[Buffer] = (),
        body_size: int = 0,
    ) -> None:
        if self._hand_over.is_here:
            self._hand_over.take(_frame(kind, head, column, schemas, body, body_size))
        else:
            super().send(kind, head, column, schemas, body, body_size)

    def send_from_anywhere(self, kind: int, head: Head) -> None:
        if not self._hand_over.is_here:
            super().send_from_anywhere(kind, head)
        elif kind == METRIC and head["do"] not in _OF_FINALIZERS:
            self._hand_over.take(_frame(kind, head))
        else:
            self._hand_over.take_soon(_frame(kind, head))


def _frame(
    kind: int,
    head: Head,
    column: Sequence[int] = (),
    schemas: bytes = b"",
    body: Sequence[Buffer] = (),
    body_size: int = 0,
) -> Frame:
    """As the server would have it of a socket."""
    start = pack(kind, encode_json(head) if head else b"", array.array("q", column).tobytes(), schemas, body_size)
    frame = FrameReader().next_frame(b"".join((start, *body)))
    assert frame is not None
    return frame
