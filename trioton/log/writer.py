"""Log writer: a thread that writes one log, so that a full, slow or hanging disk holds up nobody who logs.

    put -> ring -> [writer] -> a place: file or stream

Lines that are there together leave in one write. What finds no room in the ring, or cannot be written, is lost and
counted. Made and closed by whoever opens the log; closing waits for what is on its way, within bounds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from trioton.log.places import Place
from trioton.log.ring import LineRing

logger = logging.getLogger(__name__)

MOST_BYTES = 4 << 20
# So long the next lines are gathered after some were written: a thread that wakes for each takes time from the others.
GATHER_SECONDS = 0.02
# So often it is looked whether the file was moved away, and tried again where it cannot be written.
LOOK_SECONDS = 1.0
# For what is on its way at the end.
CLOSE_SECONDS = 2.0


class LogWriter:
    """`name` says which log it is, for the line about lost lines and for the metrics."""

    def __init__(self, place: Place, name: str, most_bytes: int = MOST_BYTES) -> None:
        self.name = name
        self._place = place
        self._ring = LineRing(most_bytes)
        self._news = threading.Event()
        self._hurry = threading.Event()
        self._awaited: deque[threading.Event] = deque()  # added by any thread, taken by the writer's
        self._reopens = False
        self._is_closing = False
        self._reported = 0
        self._problem = ""
        self._looked = 0.0
        self._failed = 0.0
        self._thread = threading.Thread(target=self._run, name=f"{name} log", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """How many lines were lost."""
        return self._ring.lost

    def put(self, line: bytes) -> None:
        """Write a line, with its end, soon. Never waits; from any thread."""
        if self._ring.put(line):
            self._news.set()

    def note_lost(self, count: int) -> None:
        """So many lines were lost before they came here."""
        if count:
            self._ring.give_up(count)

    def reopen(self) -> None:
        """Let go of the file, which is about to be moved away or was, and open what is there under its name."""
        self._reopens = True
        self._wake()

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until what was put has been written, or lost; no longer than that. Returns whether it was."""
        done = threading.Event()
        self._awaited.append(done)
        self._wake()
        return done.wait(seconds)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write what is left, within that time, and end the thread. One that hangs in a write is left alone."""
        self._is_closing = True
        self._wake()
        self._thread.join(seconds)
        self._ring.close()
        if not self._thread.is_alive():
            self._place.close()

    def _wake(self) -> None:
        self._hurry.set()
        self._news.set()

    def _run(self) -> None:
        while True:
            awaited = [self._awaited.popleft() for _ in range(len(self._awaited))]
            is_last = self._is_closing
            lines = self._ring.take()
            self._hurry.clear()
            if self._reopens:
                self._reopens = False
                self._try(self._place.reopen)
            if lines:
                self._write(lines)
            for done in awaited:
                done.set()
            if is_last:
                return
            if lines:
                self._hurry.wait(GATHER_SECONDS)
            else:
                self._news.wait()
                self._news.clear()

    def _write(self, lines: Sequence[bytes]) -> None:
        now = time.monotonic()
        if self._failed and now - self._failed < LOOK_SECONDS and not self._is_closing:
            self._ring.give_up(len(lines))
            return
        try:
            if now - self._looked >= LOOK_SECONDS:
                self._looked = now
                self._place.look()
            self._place.write(b"".join(lines))
        except Exception as error:  # whatever it is, the lines after these may be written
            self._failed = now
            self._looked = 0.0
            self._problem = getattr(error, "strerror", None) or str(error)
            self._ring.give_up(len(lines))
            return
        self._failed = 0.0
        if (lost := self._ring.lost - self._reported) > 0:
            self._reported += lost
            why = self._problem or "more came than could be written"
            self._problem = ""
            logger.warning("%d lines of the %s log were lost: %s", lost, self.name, why)

    def _try(self, act: object) -> None:
        assert callable(act)
        try:
            act()
        except OSError as error:
            self._problem = error.strerror or str(error)
            self._looked = 0.0
