"""Auth keys file: an actor that polls the file every second and holds the current key ring.

Started by the server beside the edges, which read `current` in each call: a plain attribute, swapped as a whole.
Cancelled, it stops polling.
"""

from __future__ import annotations

import hashlib
import logging
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from protocol.access.keys import KeyRing
from protocol.failures import CallbackFailures
from protocol.quotas.accounts import Ledger

logger = logging.getLogger(__name__)

LOOK_INTERVAL_SECONDS = 1.0
# Of the file; several thousand keys.
MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of one poll; `mark` identifies the contents without keeping their text."""

    mark: bytes
    found: KeyRing | ValueError


class KeysFile:
    """The keys in a file, as they were when it was last right.

    A file that has become unreadable or wrong leaves the keys that were read before in force, and the log says once
    what is wrong with it.

    Implements `control.KeySource`.

    Attributes:
        on_change: called with each new ring in force, before anyone can have heard of it.

    Raises:
        ValueError: the file cannot be read, or is wrong; a server does not start with it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        contents = _read(path)
        self._mark = _mark(contents)
        self.current = _parsed(contents, path)
        self.changed = trio.Event()
        self.ledger = Ledger(trio.current_time)
        self.ledger.adopt(self.current.terms)
        self.on_change: Callable[[], None] = _nobody_is_told

    async def watch(
        self, failures: CallbackFailures, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Poll the file every second, for ever. Ends by cancellation only, and leaves nothing behind."""
        task_status.started()
        while True:
            await trio.sleep(LOOK_INTERVAL_SECONDS)
            with failures.noted("background", "the auth keys file could not be looked at; its keys stay in force"):
                await self.look()

    async def look(self) -> None:
        """Read the file, and take its keys if it has changed.

        The contents are compared, not the modification time, which two quick changes can share. Parsing is done in the
        thread too. On cancellation the thread is abandoned: a file system that hangs must not keep the server from
        stopping.
        """
        look = await trio.to_thread.run_sync(_look_at, self._path, self._mark, abandon_on_cancel=True)
        if look is None:
            return
        self._mark = look.mark
        if isinstance(look.found, ValueError):
            logger.error("%s; the keys that were read before stay in force", look.found)
            return
        self.current = look.found
        self.ledger.adopt(look.found.terms)
        self.on_change()
        changed, self.changed = self.changed, trio.Event()
        changed.set()
        names = ", ".join(look.found.names) or "none"
        logger.info("auth keys file '%s' has changed; its keys are now: %s", self._path, names)


def _nobody_is_told() -> None:
    pass


def _look_at(path: Path, seen: bytes) -> _Look | None:
    """The contents; None if they are those of the mark `seen`."""
    try:
        contents = _read(path)
    except ValueError as exc:
        mark = _mark(ascii(exc).encode())
        return None if mark == seen else _Look(mark, exc)
    mark = _mark(contents)
    if mark == seen:
        return None
    try:
        return _Look(mark, _parsed(contents, path))
    except ValueError as exc:
        return _Look(mark, exc)


def _mark(contents: bytes) -> bytes:
    return hashlib.sha256(contents).digest()


def _parsed(contents: bytes, path: Path) -> KeyRing:
    try:
        text = contents.decode()
    except UnicodeDecodeError as exc:
        raise ValueError(f"auth keys file '{path}' is not valid UTF-8 at byte {exc.start}") from None
    return KeyRing.parse(text, source=str(path))


def _read(path: Path) -> bytes:
    try:
        # Others than regular files (a pipe) could keep the reader waiting, or give their contents only once.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError(f"auth keys file '{path}' is not a regular file")
        with path.open("rb") as file:
            contents = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ValueError(f"auth keys file '{path}' cannot be read: {exc.strerror or exc}") from None
    if len(contents) > MAX_FILE_BYTES:
        raise ValueError(f"auth keys file '{path}' has more than {MAX_FILE_BYTES} bytes")
    return contents
