"""Prints of a model: a line that it prints while it runs a batch goes to the server as a message of that batch, and one
that a handler of `logging` writes with all that its record knows.

So the server's log can say which request it belongs to, and how bad it is. All else that is printed, and what other
programs and libraries write to the process's own output, goes there as ever, and the server reads it line by line.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Iterable, cast

from .frames import LOG
from .log_records import record_being_written, send_record
from .speaker import FindSpeaker, Speaker

# A line of more characters is sent in pieces.
_LONGEST = 8192


def tag_prints(find_speaker: FindSpeaker) -> None:
    """To be called once in each worker's process, before the model is loaded."""
    sys.stdout = cast(Any, Printed(sys.stdout, find_speaker))
    sys.stderr = cast(Any, Printed(sys.stderr, find_speaker))


class Printed:
    """A text stream in front of another one, which it is in all but what `write` does with whole lines."""

    def __init__(self, stream: Any, find_speaker: FindSpeaker) -> None:
        self._stream = stream
        self._find_speaker = find_speaker
        self._begun = ""  # a line without its end
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def write(self, text: str) -> int:
        speaker = self._find_speaker() if isinstance(text, str) else None
        record = None if speaker is None else record_being_written()
        if speaker is not None and record is not None:
            self._write_record(speaker, record, text)
            return len(text)
        with self._lock:
            if speaker is None or not speaker.work:
                self._pass_on()
                return cast(int, self._stream.write(text))
            *lines, self._begun = (self._begun + text).split("\n")
            if len(self._begun) > _LONGEST:
                lines.append(self._begun)
                self._begun = ""
        for line in lines:
            for start in range(0, len(line), _LONGEST):
                _send(line[start : start + _LONGEST], speaker)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._lock:
            self._pass_on()
            self._stream.flush()

    def _write_record(self, speaker: Speaker, record: Any, text: str) -> None:
        text = text.rstrip("\r\n")
        if text:  # some handlers write the line's end by itself
            send_record(speaker, record, text, is_printed=True)

    def _pass_on(self) -> None:
        """What has begun goes where it can wait for its end."""
        if self._begun:
            begun, self._begun = self._begun, ""
            self._stream.write(begun)


def _send(line: str, speaker: Speaker) -> None:
    # Not `send`: it would wait for itself where something is printed while a frame is sent (`__del__`, signals).
    speaker.connection.send_from_anywhere(LOG, {"level": 0, "message": line, "batch": speaker.work, "is_printed": True})
