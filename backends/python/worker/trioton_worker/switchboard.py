"""Who reads the socket: whichever thread waits, reads for all.

A worker has no thread that only reads: that would cost each batch a switch of threads. The main thread reads while it
waits for a batch, and a thread that waits for an answer reads if nobody else does; what it reads for others it hands to
them, and when its own answer is there it hands the reading on. Only for coroutines that wait, and for `is_ready`, is
there a thread that stands in while nobody reads.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable

from .connection import Connection, Frame
from .frames import COMPLETE, EXECUTE, FINALIZE, INITIALIZE

_COMMANDS = frozenset({INITIALIZE, COMPLETE, EXECUTE, FINALIZE})


class Ticket:
    """Something that a thread waits for, once."""

    __slots__ = ("has_lead", "is_done", "wake")

    def __init__(self) -> None:
        self.is_done = False
        self.has_lead = False
        self.wake: threading.Lock | None = None  # of a thread that sleeps


class Switchboard:
    """`handlers` take frames by their kind, in the thread that reads; they must not wait. Frames that command the main
    thread are fetched with `next_command`."""

    def __init__(self, connection: Connection, break_off: Callable[[BaseException], None]) -> None:
        self.handlers: dict[int, Callable[[Frame], None]] = {}
        self.is_gone = False  # the server has closed its end
        self._connection = connection
        self._break_off = break_off  # may return; the connection is closed then
        self._lock = threading.Lock()
        self._is_read = False  # some thread reads
        self._sleeping: dict[Ticket, None] = {}
        self._commands: deque[Frame] = deque()
        self._awaited_command: Ticket | None = None
        self._stand_in_needs = 0
        self._stand_in_wanted = threading.Condition(self._lock)
        self._stand_in: threading.Thread | None = None

    def next_command(self) -> Frame | None:
        """Wait for the next frame that is for the main thread; None when the server has closed its end."""
        with self._lock:
            if self._commands:
                return self._commands.popleft()
            if self._is_read:
                ticket = self._awaited_command = Ticket()
            else:
                ticket = None
                self._is_read = True
        if ticket is None:
            try:
                return self._read_command()
            finally:
                self._hand_on()
        self.wait(ticket)
        with self._lock:
            return self._commands.popleft() if self._commands else None

    def _read_command(self) -> Frame | None:
        while True:
            frame = self._connection.receive()
            if frame is None:
                self._end()
                return None
            if frame.kind in _COMMANDS:
                return frame
            self.handlers[frame.kind](frame)

    def wait(self, ticket: Ticket) -> None:
        """Return when somebody has called `complete` with the ticket, or when the server has gone."""
        with self._lock:
            if ticket.is_done or self.is_gone:
                return
            if self._is_read:
                ticket.wake = threading.Lock()
                ticket.wake.acquire()
                self._sleeping[ticket] = None
            else:
                self._is_read = ticket.has_lead = True
        if ticket.wake is not None:
            ticket.wake.acquire()  # until it is done, or this thread is to read
        if ticket.has_lead:
            try:
                while not (ticket.is_done or self.is_gone):
                    self._read()
            finally:
                self._hand_on()

    def complete(self, ticket: Ticket) -> None:
        with self._lock:
            self._complete(ticket)

    def look(self) -> None:
        """Take what has come already; wait for nothing."""
        with self._lock:
            if self._is_read or not self._connection.is_usable:
                return
            self._is_read = True
        try:
            while not self.is_gone and self._connection.is_readable():
                self._read()
        finally:
            self._hand_on()

    def want_stand_in(self, needs: int) -> None:
        """Count up, or down again, who must be heard while no thread waits."""
        with self._lock:
            self._stand_in_needs += needs
            if self._stand_in_needs > 0:
                if self._stand_in is None:
                    self._stand_in = threading.Thread(target=self._stand_in_run, name="trioton reader", daemon=True)
                    self._stand_in.start()
                self._stand_in_wanted.notify()

    def _stand_in_run(self) -> None:
        while not self.is_gone:
            with self._lock:
                while self._is_read or self._stand_in_needs <= 0:
                    self._stand_in_wanted.wait()
                self._is_read = True
            is_wanted = True
            while is_wanted and not self.is_gone:
                self._read()
                with self._lock:
                    is_wanted = not self._sleeping and self._stand_in_needs > 0
            self._hand_on()

    def _hand_on(self) -> None:
        """Let the next one read."""
        with self._lock:
            for ticket in self._sleeping:
                del self._sleeping[ticket]
                ticket.has_lead = True
                assert ticket.wake is not None
                ticket.wake.release()
                return
            self._is_read = False
            if self._stand_in_needs > 0:
                self._stand_in_wanted.notify()

    def _read(self) -> None:
        try:
            frame = self._connection.receive()
            if frame is None:
                self._end()
            elif frame.kind in _COMMANDS:
                with self._lock:
                    self._commands.append(frame)
                    if self._awaited_command is not None:
                        self._complete(self._awaited_command)
                        self._awaited_command = None
            else:
                self.handlers[frame.kind](frame)
        except BaseException as error:  # ours or the server's fault; whoever happens to read must not be blamed
            self._break_off(error)
            self._end()

    def _complete(self, ticket: Ticket) -> None:
        ticket.is_done = True
        if ticket in self._sleeping:
            del self._sleeping[ticket]
            assert ticket.wake is not None
            ticket.wake.release()

    def _end(self) -> None:
        with self._lock:
            self.is_gone = True
            for ticket in list(self._sleeping):
                self._complete(ticket)
