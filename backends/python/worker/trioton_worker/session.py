"""Session: one instance's conversation with the server, and how `pb_utils` functions find that of their caller.

A process of its own has one session. Where several instances share a process, each has a session in its own thread;
threads that a model has started are told by the files whose code they run.
"""

from __future__ import annotations

import contextvars
import os
import sys
import weakref
from typing import Any, Callable, Sequence

from .calls import Calls
from .connection import Connection, Frame
from .errors import text_of
from .frames import CANCEL, CREDIT, NO_SLOT, TRIM
from .heap import trim_heap
from .process_exit import exit_for, print_error
from .schemas import Schemas
from .switchboard import Switchboard


class LiveBatch:
    """A batch as long as anything of it is of interest: while it runs, or a request of it is held.

    `inputs` and `outputs` are the slots that EXECUTE says; `memory` is what holds the inputs, where that is a shared
    segment. `placed` has the outputs that were left there: where each would be in the segment of outputs, where it is,
    and its size; `shared` bytes there are all outputs.
    `replies` has the open replies of those requests that have a response sender (see `senders`); None while none has.
    """

    __slots__ = (
        "__weakref__",
        "cancelled",
        "has_failed",
        "inputs",
        "memory",
        "number",
        "outputs",
        "placed",
        "replies",
        "session",
        "shared",
    )

    def __init__(self, session: Session, number: int, inputs: int = NO_SLOT, outputs: int = NO_SLOT) -> None:
        self.session = session
        self.number = number
        self.inputs = inputs
        self.outputs = outputs
        self.memory: weakref.ref[Any] | None = None
        self.placed: Sequence[tuple[int, int, int]] = ()
        self.shared = 0
        self.cancelled: set[int] = set()
        self.has_failed = False
        self.replies: weakref.WeakValueDictionary[int, Any] | None = None

    def add_reply(self, index: int, reply: Any) -> None:
        if self.replies is None:
            self.replies = weakref.WeakValueDictionary()
            self.session.replying[self.number] = self
        self.replies[index] = reply


def _ignore(error: BaseException) -> None:
    """Only the server is notified of it."""


class Session:
    """`owns_process` is false in the server's own process, which a model must not end. `note_failure` gets every
    exception that the model raises, in its thread, before the server is told."""

    def __init__(
        self,
        connection: Connection,
        *,
        owns_process: bool = True,
        note_failure: Callable[[BaseException], None] = _ignore,
    ) -> None:
        self.connection = connection
        self.schemas = Schemas()
        self.switchboard = Switchboard(connection, self.break_off)
        # The version directory, and the other folders from which the model's code comes.
        self.model_directory = ""
        self.folders: tuple[str, ...] = ()
        self.end_text = ""  # how the model has broken off, where that has not ended the process
        self.owns_process = owns_process
        self.note_failure = note_failure
        self.calls = Calls(connection, self.switchboard, self.schemas)
        self.instance: Any = None  # the `Instance` that it serves, while it does
        self.can_infer = False  # between initialize and finalize
        self.is_decoupled = False
        self.logs_verbose = True
        self.byte_limit = 0  # of the tensors of one frame; set before any is sent
        self.executing: dict[int, LiveBatch] = {}
        # Those that have response senders, also when they are executed.
        self.replying: weakref.WeakValueDictionary[int, LiveBatch] = weakref.WeakValueDictionary()
        self.switchboard.handlers[CANCEL] = self._cancelled
        self.switchboard.handlers[CREDIT] = self._credited
        self.switchboard.handlers[TRIM] = self._trim

    def calling_batch(self) -> LiveBatch | None:
        """The batch that this thread or coroutine works for: a thread that a model has started belongs to the batch
        that is being executed, if it is the only one."""
        batch = _executing.get()
        if batch is not None:
            return batch
        running = tuple(self.executing.values())
        return running[0] if len(running) == 1 else None

    def logging_batch(self) -> LiveBatch | None:
        """The batch that a line of this thread or coroutine belongs to: also one that has left `execute`, as long as
        its response senders are the only ones."""
        batch = self.calling_batch()
        if batch is not None or self.executing:
            return batch
        open_batches = tuple(self.replying.values())
        return open_batches[0] if len(open_batches) == 1 else None

    def place(self, head: Any) -> None:
        """Note where the model lies."""
        self.model_directory = head["version_directory"]
        folders = (self.model_directory, head["directory"], os.path.dirname(head["path"]))
        self.folders = tuple(folder + os.sep for folder in folders)

    def break_off(self, error: BaseException) -> None:
        """End as an exception that nobody catches: the process, or where it is the server's only this session."""
        if self.owns_process:
            exit_for(error)
        self.note_failure(error)
        if not self.end_text:
            self.end_text = f"ended by {text_of(error)}"
            print_error(error)
        self.connection.hang_up()

    def close(self) -> None:
        """In a process that goes on: leave no cycle that keeps the model, its segments and descriptors until the next
        collection of garbage."""
        self.switchboard.close()
        self.instance = None

    def _cancelled(self, frame: Frame) -> None:
        number = frame.head["batch"]
        batch = self.executing.get(number) or self.replying.get(number)
        if batch is not None:
            batch.cancelled.add(frame.head["index"])

    def _trim(self, frame: Frame) -> None:
        if self.owns_process:  # the server's own heap is the server's
            trim_heap()

    def _credited(self, frame: Frame) -> None:
        batch = self.replying.get(frame.head["batch"])
        reply = None if batch is None or batch.replies is None else batch.replies.get(frame.head["index"])
        if reply is not None:
            reply.credit(frame.head["count"])


_executing: contextvars.ContextVar[LiveBatch | None] = contextvars.ContextVar("executing", default=None)
_current: contextvars.ContextVar[Session | None] = contextvars.ContextVar("session", default=None)
_open: list[Session] = []


def open_session(opened: Session) -> Session:
    """It is the running thread's until it is closed; coroutines that the thread starts have it too."""
    _open.append(opened)
    _current.set(opened)
    return opened


def close_session(closed: Session) -> None:
    _open.remove(closed)
    _current.set(None)


# Make a session the running thread's too, until `leave_session` gets what this returns: of one that works for several.
enter_session: Callable[[Session], contextvars.Token[Session | None]] = _current.set
leave_session: Callable[[contextvars.Token[Session | None]], None] = _current.reset


def session() -> Session | None:
    """The session that the caller belongs to; None where there is no server, as in a test of the model's own."""
    found = _current.get()
    if found is not None or not _open:
        return found
    return _open[0] if len(_open) == 1 else _session_of_code()


def _session_of_code() -> Session:
    """For a thread that a model has started: the first session, from the caller outwards, whose model's code runs."""
    sessions = tuple(_open)
    frame = sys._getframe(2)
    while frame is not None:
        for each in sessions:
            if frame.f_code.co_filename.startswith(each.folders):
                return each
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return sessions[0]


# Say what the running thread or coroutine works for.
set_executing: Callable[[LiveBatch | None], object] = _executing.set
