"""The keys file as an actor, with real files and virtual time."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.access import keys_file
from protocol.access.categories import Category
from protocol.access.keys_file import LOOK_INTERVAL_SECONDS, MAX_FILE_BYTES, KeysFile
from protocol.errors import Unauthenticated
from protocol.failures import CallbackFailures

OLD = "old-key-0123456789"
NEW = "new-key-0123456789"


def text_of(key: str) -> str:
    return f"[keys.alice]\nkey = '{key}'\nallow = ['inference']\n"


def may_infer(keys: KeysFile, key: str) -> bool:
    try:
        keys.current.check(f"Bearer {key}", Category.INFERENCE)
    except Unauthenticated:
        return False
    return True


def write(path: Path, contents: str | bytes | None) -> None:
    """A whole new file in the place of the old one; None for no file."""
    path.unlink(missing_ok=True)
    if contents is not None:
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())


class Messages(logging.Handler):
    """The log's messages as they come, for a test to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._send, self._receive = trio.open_memory_channel[str](100)

    def emit(self, record: logging.LogRecord) -> None:
        self._send.send_nowait(f"{record.levelname} {record.getMessage()}")

    async def next(self) -> str:
        return await self._receive.receive()

    def has_more(self) -> bool:
        return self._receive.statistics().current_buffer_used > 0

    def close(self) -> None:
        self._send.close()
        self._receive.close()
        super().close()


@pytest.fixture
def messages() -> Iterator[Messages]:
    logger = logging.getLogger("protocol.access.keys_file")
    handler, level = Messages(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)
    handler.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(text_of(OLD))
    return path


async def test_a_changed_file_is_in_force_within_a_look(
    path: Path, messages: Messages, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    keys = KeysFile(path)
    ring = keys.current
    await nursery.start(keys.watch, CallbackFailures())
    write(path, text_of(NEW))
    assert keys.current is ring, "nothing changes before the next look"
    started = trio.current_time()
    assert await messages.next() == f"INFO auth keys file '{path}' has changed; its keys are now: alice"
    assert trio.current_time() - started >= LOOK_INTERVAL_SECONDS
    assert (may_infer(keys, OLD), may_infer(keys, NEW)) == (False, True)
    nursery.cancel_scope.cancel()


async def test_a_change_of_equal_length_and_time_is_seen(path: Path) -> None:
    """Two changes within one tick of the file system's clock differ in nothing but their contents."""
    keys = KeysFile(path)
    before = os.stat(path)
    write(path, text_of(NEW))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    await keys.look()
    assert may_infer(keys, NEW)


async def test_a_replaced_link_is_followed(tmp_path: Path, path: Path) -> None:
    """As mounted secrets change: the name stays, what it leads to is another file."""
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    keys = KeysFile(link)
    (tmp_path / "other.toml").write_text(text_of(NEW))
    (tmp_path / "next").symlink_to(tmp_path / "other.toml")
    (tmp_path / "next").replace(link)
    await keys.look()
    assert may_infer(keys, NEW)


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (b"", ": holds neither a table [keys.<name>] nor [anonymous]"),
        (b"[keys.alice]\nallow = ['all']", ": [keys.alice] has no key, expected 'key' or 'sha256'"),
        (b"[keys]\n\xff", " is not valid UTF-8 at byte 7"),
        (b"#" * (MAX_FILE_BYTES + 1), f" has more than {MAX_FILE_BYTES} bytes"),
        (None, " cannot be read: No such file or directory"),
    ],
    ids=["empty", "wrong", "no text", "too large", "gone"],
)
async def test_a_broken_file_keeps_the_old_keys_and_is_named_once(
    path: Path, messages: Messages, contents: bytes | None, problem: str
) -> None:
    keys = KeysFile(path)
    write(path, contents)
    for _ in range(3):
        await keys.look()
    expected = f"ERROR auth keys file '{path}'{problem}; the keys that were read before stay in force"
    assert await messages.next() == expected
    assert not messages.has_more()
    assert may_infer(keys, OLD)

    write(path, text_of(OLD))
    await keys.look()
    assert await messages.next() == f"INFO auth keys file '{path}' has changed; its keys are now: alice"
    assert may_infer(keys, OLD)


async def test_an_unchanged_file_is_not_read_into_a_new_ring(path: Path, messages: Messages) -> None:
    keys = KeysFile(path)
    ring = keys.current
    write(path, text_of(OLD))
    await keys.look()
    assert keys.current is ring
    assert not messages.has_more()


async def test_a_file_system_that_hangs_does_not_keep_the_server(
    path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Cancelled while it reads, the actor ends at once and leaves the thread behind."""
    reading, go_on = trio.Event(), threading.Event()

    def hang(path: Path, seen: bytes) -> None:
        trio.from_thread.run_sync(reading.set)
        go_on.wait()

    monkeypatch.setattr(keys_file, "_look_at", hang)
    keys = KeysFile(path)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(keys.watch, CallbackFailures())
            await reading.wait()
            nursery.cancel_scope.cancel()
        assert not go_on.is_set()
    finally:
        go_on.set()


async def test_the_log_never_shows_a_key(path: Path, messages: Messages) -> None:
    keys = KeysFile(path)
    for text in (text_of(NEW), f"[keys.alice]\nkey = {NEW}", f"[keys]\nalice = '{NEW}'", f"keys = '{NEW}'"):
        write(path, text)
        await keys.look()
        assert NEW not in await messages.next()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (Path.mkdir, "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.write_text("[keys"), "is not valid TOML"),
        (lambda path: path.write_bytes(b"\xff"), "is not valid UTF-8 at byte 0"),
    ],
    ids=["missing", "folder", "pipe", "no TOML", "no text"],
)
def test_a_server_does_not_start_without_its_keys(tmp_path: Path, make: object, problem: str) -> None:
    path = tmp_path / "first.toml"
    assert callable(make)
    make(path)
    with pytest.raises(ValueError, match=problem) as caught:
        KeysFile(path)
    assert str(caught.value).startswith(f"auth keys file '{path}' ")
