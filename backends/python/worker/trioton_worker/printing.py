"""Prints of a model: a line that it prints while it runs a batch goes to the server as a message of that batch.

So the server's log can say which request it belongs to. All else that is printed, and what other programs and libraries
write to the process's own output, goes there as ever, and the server reads it line by line.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Iterable, cast

from .frames import LOG
from .session import LiveBatch, session

# A line of more characters is sent in pieces.
_LONGEST = 8192


def tag_prints() -> None:
    """To be called once in each worker's process, before the model is loaded."""
    sys.stdout = cast(Any, Printed(sys.stdout))
    sys.stderr = cast(Any, Printed(sys.stderr))


class Printed:
    """A text stream in front of another one, which it is in all but what `write` does with whole lines."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._begun = ""  # a line without its end
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def write(self, text: str) -> int:
        batch = _printing_batch() if isinstance(text, str) else None
        with self._lock:
            if batch is None:
                self._pass_on()
                return cast(int, self._stream.write(text))
            *lines, self._begun = (self._begun + text).split("\n")
            if len(self._begun) > _LONGEST:
                lines.append(self._begun)
                self._begun = ""
        for line in lines:
            if line:
                _send(line, batch)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._lock:
            self._pass_on()
            self._stream.flush()

    def _pass_on(self) -> None:
        """What has begun goes where it can wait for its end."""
        if self._begun:
            begun, self._begun = self._begun, ""
            self._stream.write(begun)


def _printing_batch() -> LiveBatch | None:
    """The batch that the caller works for, if there is one, and the server can be told."""
    here = session()
    if here is None or not here.owns_process or not here.connection.is_usable:
        return None
    return here.calling_batch()


def _send(line: str, batch: LiveBatch) -> None:
    # Not `send`: it would wait for itself where something is printed while a frame is sent (`__del__`, signals).
    batch.session.connection.send_from_anywhere(
        LOG, {"level": 0, "message": line, "batch": batch.number, "is_printed": True}
    )
