"""What this process shares: its connection to the server, and what is under way on it.

The functions of `triton_python_backend_utils` have no object to ask, so they find the session by who calls them. In a
worker process there is one, opened before the model is imported; `trioton.testing` has one for each model instance.
"""

from __future__ import annotations

import contextvars
import weakref
from typing import Any, Callable

from .calls import Calls
from .connection import Connection, Frame
from .frames import CANCEL, CREDIT
from .process_exit import exit_for
from .switchboard import Switchboard


class LiveBatch:
    """A batch as long as anything of it is of interest: while it runs, or a request of it is held.

    `replies` has the open replies of those requests that have a response sender (see `senders`); None while none has.
    """

    __slots__ = ("__weakref__", "cancelled", "has_failed", "number", "replies", "session")

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        self.cancelled: set[int] = set()
        self.has_failed = False
        self.replies: weakref.WeakValueDictionary[int, Any] | None = None

    def add_reply(self, index: int, reply: Any) -> None:
        if self.replies is None:
            self.replies = weakref.WeakValueDictionary()
            self.session.replying[self.number] = self
        self.replies[index] = reply


class Session:
    """One worker's side of the conversation."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.switchboard = Switchboard(connection)
        self.calls = Calls(connection, self.switchboard)
        self.can_infer = False  # between initialize and finalize
        self.is_decoupled = False
        self.logs_verbose = True
        self.model_folder = ""
        # The name that the model's folder gets as a package; where empty, its version.
        self.package = ""
        # What the model's own threads need to end, where the process goes on.
        self.at_end: list[Callable[[], None]] = []
        self.executing: dict[int, LiveBatch] = {}
        # Those that have response senders, also when they are executed.
        self.replying: weakref.WeakValueDictionary[int, LiveBatch] = weakref.WeakValueDictionary()
        self.switchboard.handlers[CANCEL] = self._cancelled
        self.switchboard.handlers[CREDIT] = self._credited

    def calling_batch(self) -> LiveBatch | None:
        """The batch that this thread or coroutine works for: a thread that a model has started belongs to the batch
        that is being executed, if it is the only one."""
        batch = _executing.get()
        if batch is not None:
            return batch
        running = tuple(self.executing.values())
        return running[0] if len(running) == 1 else None

    def break_off(self, error: BaseException) -> None:
        """The model has asked for the end, or nothing can go on."""
        exit_for(error)

    def note_failure(self, error: BaseException) -> None:
        """A method of the model has raised; the server is told."""

    def _cancelled(self, frame: Frame) -> None:
        number = frame.head["batch"]
        batch = self.executing.get(number) or self.replying.get(number)
        if batch is not None:
            batch.cancelled.add(frame.head["index"])

    def _credited(self, frame: Frame) -> None:
        batch = self.replying.get(frame.head["batch"])
        reply = None if batch is None or batch.replies is None else batch.replies.get(frame.head["index"])
        if reply is not None:
            reply.credit(frame.head["count"])


_executing: contextvars.ContextVar[LiveBatch | None] = contextvars.ContextVar("executing", default=None)
_own: contextvars.ContextVar[Session | None] = contextvars.ContextVar("own", default=None)
_open: list[Session] = []


def open_session(session: Session) -> None:
    """Say that this thread is the session's main one."""
    _open.append(session)
    _own.set(session)


def close_session(session: Session) -> None:
    _open.remove(session)


def adopt_session(session: Session) -> None:
    """Say that this thread works for the session."""
    _own.set(session)


def session() -> Session | None:
    """The caller's session: threads that a model starts have the only one that is open. None where there is no server,
    as in a test of the model's own, or where it cannot be told."""
    batch = _executing.get()
    if batch is not None:
        return batch.session
    own = _own.get()
    if own is not None:
        return own
    return _open[0] if len(_open) == 1 else None


def set_executing(batch: LiveBatch | None) -> None:
    """Say what the running thread or coroutine works for."""
    _executing.set(batch)
