"""Switchboard: whichever thread waits for a frame reads the socket for all threads.

A worker has no thread that only reads: that would cost each batch a switch of threads. The main thread reads while it
waits for a batch, and a thread that waits for an answer reads if nobody else does; what it reads for others it hands to
them, and when its own answer is there it hands the reading on. A loop in which coroutines wait reads by itself while no
thread does (`loop_reader`); the main thread leaves the reading to the instance's own loop. Where none of these can, for
coroutines and for `is_ready`, a thread stands in.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Callable

from .connection import Connection, Frame
from .frames import COMPLETE, EXECUTE, FINALIZE, INITIALIZE
from .loop_reader import LoopReader

if TYPE_CHECKING:
    import asyncio

_COMMANDS = frozenset({INITIALIZE, COMPLETE, EXECUTE, FINALIZE})
# A model may block the loop that reads. After so long the main thread reads in its place.
_BLOCKED_SECONDS = 0.5


def _ignore(error: BaseException) -> None:
    """Of an instance that has ended."""


class Ticket:
    """Something that a thread waits for, once."""

    __slots__ = ("has_lead", "is_done", "wake")

    def __init__(self) -> None:
        self.is_done = False
        self.has_lead = False
        self.wake: threading.Lock | None = None  # of a thread that sleeps

    def fall_asleep(self) -> threading.Lock:
        """The lock that is acquired again when somebody wakes the thread."""
        self.wake = threading.Lock()
        self.wake.acquire()
        return self.wake


class Switchboard:
    """`handlers` take frames by their kind, in the thread that reads; they must not wait. Frames that command the main
    thread are fetched with `next_command`. `own_loop` is the instance's, which runs as long as the instance lives."""

    def __init__(self, connection: Connection, break_off: Callable[[BaseException], None]) -> None:
        self.handlers: dict[int, Callable[[Frame], None]] = {}
        self.is_gone = False  # the server has closed its end
        self.own_loop: asyncio.AbstractEventLoop | None = None
        self._connection = connection
        self._break_off = break_off  # may return; the connection is closed then
        self._lock = threading.Lock()
        self._is_read = False  # some thread reads
        self._sleeping: dict[Ticket, None] = {}
        self._commands: deque[Frame] = deque()
        self._awaited_command: Ticket | None = None
        self._here = threading.local()  # the reader of the loop in this thread
        self._loops: set[LoopReader] = set()  # in which something waits, or which read
        self._lent_to: LoopReader | None = None  # reads in the main thread's place
        self._wanted_by: LoopReader | None = None  # would
        self._checks = 0
        self._stand_in_wanted = threading.Condition(self._lock)
        self._stand_in: threading.Thread | None = None

    def close(self) -> None:
        """Drop the handlers: what they belong to is freed without a collection of garbage. Threads that still read find
        none, and end."""
        self.handlers.clear()
        self._break_off = _ignore

    # The main thread

    def next_command(self) -> Frame | None:
        """Wait for the next frame that is for the main thread; None when the server has closed its end."""
        while True:
            with self._lock:
                if self._commands:
                    return self._commands.popleft()
                if self.is_gone:
                    return None
                ticket = None
                if self._is_read or self._lent_to is not None:
                    ticket = self._awaited_command = Ticket()
                else:
                    self._is_read = True
                lent_to = self._lent_to
            if ticket is None:
                try:
                    frame = self._read_command()
                finally:
                    self._hand_on()
                if frame is not None:
                    return frame
            elif lent_to is None:
                self.wait(ticket)
            else:
                self._sleep_while_lent(ticket)

    def _read_command(self) -> Frame | None:
        """None if it is another's turn, or the server has closed its end."""
        while self._wanted_by is None:
            frame = self._connection.receive()
            if frame is None:
                self._end()
                return None
            if frame.kind in _COMMANDS:
                return frame
            self.handlers[frame.kind](frame)
        with self._lock:
            loop, self._wanted_by = self._wanted_by, None
            loop.is_reading = True
            self._lent_to = loop
        loop.loop.call_soon_threadsafe(loop.watch)
        return None

    def _sleep_while_lent(self, ticket: Ticket) -> None:
        with self._lock:
            if ticket.is_done or self.is_gone or self._lent_to is None:
                return
            wake = ticket.fall_asleep()
        while not wake.acquire(timeout=_BLOCKED_SECONDS):
            with self._lock:
                if not self._is_read and self._connection.is_readable():
                    self._lent_to = None
                    return

    # Threads that wait for answers

    def wait(self, ticket: Ticket) -> None:
        """Return when somebody has called `complete` with the ticket, or when the server has gone."""
        with self._lock:
            if ticket.is_done or self.is_gone:
                return
            wake = None
            if self._is_read:
                wake = ticket.fall_asleep()
                self._sleeping[ticket] = None
            else:
                self._is_read = ticket.has_lead = True
        if wake is not None:
            wake.acquire()  # until it is done, or this thread is to read
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

    # Loops, and the thread that stands in

    def loop_reader(self, loop: asyncio.AbstractEventLoop) -> LoopReader:
        """That of the loop that runs in this thread."""
        found: LoopReader | None = getattr(self._here, "reader", None)
        if found is None or found.loop is not loop:
            if found is not None and found.loop.is_closed():
                self.drop_loop(found)
            found = self._here.reader = LoopReader(self, loop)
        return found

    def fileno(self) -> int:
        return self._connection.fileno()

    def join_loop(self, loop: LoopReader, *, can_read: bool) -> bool:
        """Something waits in a loop; whether that is to read now."""
        with self._lock:
            loop.waiting += 1
            if loop.is_reading:
                return False
            self._loops.add(loop)
            is_own = loop.loop is self.own_loop
            if can_read and not self._checks and not self._is_read:
                loop.is_reading = True
                if is_own:
                    self._lent_to = loop
                return True
            if can_read and not self._checks and is_own:
                self._wanted_by = loop
            self._call_stand_in()
            return False

    def leave_loop(self, loop: LoopReader) -> None:
        """What was waited for has come."""
        with self._lock:
            loop.waiting -= 1
            if not loop.waiting and not loop.is_reading:
                self._loops.discard(loop)

    def read_in_loop(self) -> bool:
        """Read what has come; false if some thread reads."""
        with self._lock:
            if self._is_read:
                return False
            self._is_read = True
        try:
            if self._connection.has_begun():
                self._read()
                while self._connection.is_ahead and not self.is_gone:
                    self._read()
        finally:
            self._hand_on()
        return not self.is_gone

    def stop_loop(self, loop: LoopReader) -> None:
        """It reads no more."""
        with self._lock:
            loop.is_reading = False
            if not loop.waiting:
                self._loops.discard(loop)
            if self._lent_to is loop:
                self._lent_to = None
                self._wake_main()
            self._call_stand_in()

    def drop_loop(self, loop: LoopReader) -> None:
        """It is closed."""
        loop.waiting = 0
        self.stop_loop(loop)

    def want_checks(self) -> None:
        """From now on `is_ready` may be asked while no thread waits."""
        with self._lock:
            self._checks += 1
            self._call_stand_in()

    def _needs_stand_in(self) -> bool:
        return bool(self._checks) or any(loop.waiting and not loop.is_reading for loop in self._loops)

    def _call_stand_in(self) -> None:
        if not self._is_read and self._needs_stand_in():
            if self._stand_in is None:
                self._stand_in = threading.Thread(target=self._stand_in_run, name="trioton reader", daemon=True)
                self._stand_in.start()
            self._stand_in_wanted.notify()

    def _stand_in_run(self) -> None:
        while not self.is_gone:
            with self._lock:
                while self._is_read or not self._needs_stand_in():
                    self._stand_in_wanted.wait()
                self._is_read = True
            is_wanted = True
            while is_wanted and not self.is_gone:
                self._read()
                with self._lock:
                    is_wanted = not self._sleeping and self._needs_stand_in()
            self._hand_on()

    # All of them

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
            if self._checks or self._loops:
                self._call_stand_in()
                if self._connection.is_ahead:  # which no loop sees at the socket
                    self._call_loops()

    def _call_loops(self) -> None:
        for loop in self._loops:
            if loop.is_reading:
                with suppress(RuntimeError):  # it is closed
                    loop.loop.call_soon_threadsafe(loop.read)

    def _read(self) -> None:
        try:
            frame = self._connection.receive()
            if frame is None:
                self._end()
            elif frame.kind in _COMMANDS:
                with self._lock:
                    self._commands.append(frame)
                    self._wake_main()
            else:
                self.handlers[frame.kind](frame)
        except BaseException as error:  # ours or the server's fault; whoever happens to read must not be blamed
            self._break_off(error)
            self._end()

    def _wake_main(self) -> None:
        if self._awaited_command is not None:
            self._complete(self._awaited_command)
            self._awaited_command = None

    def _complete(self, ticket: Ticket) -> None:
        if ticket.is_done:
            return
        ticket.is_done = True
        self._sleeping.pop(ticket, None)
        if ticket.wake is not None and not ticket.has_lead:
            ticket.wake.release()

    def _end(self) -> None:
        with self._lock:
            self.is_gone = True
            self._wake_main()
            for ticket in list(self._sleeping):
                self._complete(ticket)
