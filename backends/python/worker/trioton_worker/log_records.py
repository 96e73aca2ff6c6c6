"""Records of `logging` in a worker: they go to the server with their level, their logger and their exception.

That is so for records that nobody handles, as far as Python shows them (warnings and errors), and for those that a
handler of the model writes to `sys.stdout` or `sys.stderr`: these as that handler's formatter has made them.
"""

from __future__ import annotations

import logging
import sys
import traceback
from types import FrameType

from .connection import Head
from .frames import LOG, LOG_LEVELS
from .speaker import FindSpeaker, Speaker

# Characters of one message, and of a name.
LONGEST = 65536
_LONGEST_NAME = 256
# Between a handler's `handle` and its stream's `write` are few calls, also in libraries that color what they write.
_MOST_FRAMES = 24
_HANDLE = logging.Handler.handle.__code__


def log_unhandled(find_speaker: FindSpeaker) -> None:
    """To be called once in each worker's process."""
    logging.lastResort = _LastResort(find_speaker)


class _LastResort(logging.Handler):
    def __init__(self, find_speaker: FindSpeaker) -> None:
        super().__init__(logging.WARNING)
        self._find_speaker = find_speaker

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        speaker = self._find_speaker()
        if speaker is None:
            print(text, file=sys.stderr)
        else:
            send_record(speaker, record, text, is_printed=False)


def record_being_written() -> logging.LogRecord | None:
    """What a handler of `logging` writes just now, where the caller's caller is called by one."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if frame.f_code is _HANDLE:
            record = frame.f_locals.get("record")
            return record if isinstance(record, logging.LogRecord) else None
        frame = frame.f_back
    return None


def send_record(speaker: Speaker, record: logging.LogRecord, text: str, *, is_printed: bool) -> None:
    """Send what was made of a record. Not `send`: a library may log while a frame is sent."""
    head: Head = {
        "level": _level(record.levelno),
        "severity": record.levelno,
        "message": text[:LONGEST],
        "filename": record.pathname,
        "line": record.lineno,
        "logger": record.name[:_LONGEST_NAME],
        "batch": speaker.work,
        "is_printed": is_printed,
    }
    error = _exception(record)
    if error is not None:
        head["exception"] = [each[:LONGEST] for each in error]
        head["message"] = text.replace(record.exc_text or error[2], "").rstrip()[:LONGEST] or record.getMessage()
    speaker.connection.send_from_anywhere(LOG, head)


def _level(level: int) -> int:
    """The place in LOG_LEVELS. What is below INFO is shown, too: the model's own handler wants it."""
    if level >= logging.ERROR:
        return LOG_LEVELS.index("ERROR")
    return LOG_LEVELS.index("WARNING" if level >= logging.WARNING else "INFO")


def _exception(record: logging.LogRecord) -> tuple[str, str, str] | None:
    """Type, message and stack trace."""
    if not isinstance(record.exc_info, tuple) or record.exc_info[0] is None:
        return None
    kind, error, _ = record.exc_info
    try:
        message = str(error)
    except Exception:
        message = f"<unprintable {kind.__name__} object>"
    stack = record.exc_text or "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
    return kind.__name__, message, stack
