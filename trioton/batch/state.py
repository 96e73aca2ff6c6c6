"""The state of a run, in a file beside its output: what was written, and from where the next start goes on.

The file is replaced as a whole, after what it tells of is on the disk; so whenever the process ends, it tells of
results that are there. What was written after it is cut off by the next start, and run again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from protocol.jobs.source import Position
from trioton.batch.caution import Caution

# Of the file's members.
_FORM = 1


class Identity(msgspec.Struct, frozen=True):
    """What has to be the same where a run goes on."""

    input: str
    output: str
    format: str
    model: str
    version: int
    shard: str
    limit: int | None


class Ends(msgspec.Struct, frozen=True):
    """How long the files are that a run writes itself: results, and errors."""

    results: int = 0
    errors: int = 0


class State(msgspec.Struct, frozen=True):
    """A run, as it was when the file was written.

    Attributes:
        position: where reading goes on: behind the last row whose result is written.
        ends: of the files.
        done: how many rows have ended, those that failed included.
        failed: how many of them failed.
        seconds: how long it has run, over all starts.
        is_running: the process may have died since.
        is_complete: there are no more rows.
    """

    identity: Identity
    position: Position = Position()
    ends: Ends = Ends()
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    caution: Caution = Caution()
    is_running: bool = False
    is_complete: bool = False
    form: int = _FORM


class UnusableState(Exception):
    """The state file cannot be gone on from; the text says why and what to do."""


class StateFile:
    """Blocks. One process has it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises UnusableState where another process has it; OSError."""
        path = f"{self.path}.lock"
        lock = self._lock(path)
        try:
            yield
        finally:
            os.unlink(path)
            os.close(lock)

    def _lock(self, path: str) -> int:
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(path) and os.path.samestat(os.fstat(lock), os.stat(path)):
                    return lock
            except BlockingIOError:
                os.close(lock)
                raise UnusableState(f"another process has '{self.path}': one run at a time writes an output") from None
            os.close(lock)  # who had it has removed it meanwhile

    def read(self) -> State | None:
        """None where there is none. Raises UnusableState, OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        return decode_state(data, str(self.path))

    def write(self, state: State) -> None:
        """Returns when it is on the disk. Raises OSError."""
        temporary = self.path.with_name(f"{self.path.name}.new")
        with open(temporary, "wb") as file:
            file.write(encode_state(state))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        sync_folder(self.path.parent)


def encode_state(state: State) -> bytes:
    """As a file has it."""
    return msgspec.json.format(msgspec.json.encode(state)) + b"\n"


def decode_state(data: bytes, name: str) -> State:
    """Raises UnusableState."""
    try:
        state = msgspec.json.decode(data, type=State)
    except msgspec.DecodeError as error:
        raise UnusableState(f"'{name}' is not the state of a run ({error}); --restart begins anew") from None
    if state.form != _FORM:
        raise UnusableState(f"'{name}' was written by another release; --restart begins anew")
    return state


def sync_folder(folder: Path) -> None:
    """Make the names in it durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_identity(state: State, wanted: Identity) -> None:
    """Raises UnusableState where the state is of another run."""
    for name in Identity.__struct_fields__:
        was, now = getattr(state.identity, name), getattr(wanted, name)
        if was != now:
            raise UnusableState(
                f"the run that goes on had another {name}, {_shown(was)} and not {_shown(now)}; --restart begins anew, "
                "and removes what there is"
            )


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)
