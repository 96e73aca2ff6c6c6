"""Mappings of segments whose client takes them away, and the signal that this is."""

from __future__ import annotations

import mmap
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.shared_memory.mapping import Mapping, mapped
from tests.protocol.shared_memory.conftest import ClientSegment, MakeSegment

PAGE = mmap.PAGESIZE
CONTENTS = bytes(range(256)) * 64


@pytest.fixture
def client(make_segment: MakeSegment) -> ClientSegment:
    return make_segment(CONTENTS)


@pytest.fixture
def descriptor(client: ClientSegment) -> Iterator[int]:
    opened = os.open(client.path, os.O_RDWR)
    yield opened
    os.close(opened)


@pytest.fixture
def mapping(descriptor: int) -> Iterator[Mapping]:
    made = some(descriptor)
    yield made
    made.close()


def some(descriptor: int, position: int = 0, size: int = len(CONTENTS)) -> Mapping:
    made = mapped(descriptor, position, size)
    assert made is not None
    return made


def read(mapping: Mapping, position: int, size: int) -> bytes | None:
    memory = memoryview(bytearray(size))
    return bytes(memory) if mapping.read_into(memory, position) else None


@pytest.mark.parametrize("position", [0, 1, PAGE - 1, PAGE, PAGE + 1])
def test_positions_are_those_in_the_segment(descriptor: int, client: ClientSegment, position: int) -> None:
    mapping = some(descriptor, position, 100)
    assert read(mapping, position + 10, 20) == CONTENTS[position + 10 : position + 30]
    assert mapping.write(position + 98, memoryview(b"\xff\xff"))
    assert client.contents == CONTENTS[: position + 98] + b"\xff\xff" + CONTENTS[position + 100 :]
    mapping.close()


def test_nothing_of_a_closed_one_is_left(descriptor: int, client: ClientSegment) -> None:
    def times() -> int:
        return Path("/proc/self/maps").read_text().count(client.key[1:])

    before = times()
    mapping = some(descriptor)
    assert times() == before + 1
    mapping.close()
    assert times() == before


def test_what_is_taken_away_is_lost_and_nothing_else(
    descriptor: int, client: ClientSegment, mapping: Mapping, make_segment: MakeSegment
) -> None:
    other_client = make_segment(CONTENTS)
    with other_client.path.open("r+b") as file:
        other = some(file.fileno())
    client.truncate(PAGE)
    assert read(mapping, 0, 8) == CONTENTS[:8]
    assert not mapping.is_lost
    assert read(mapping, 100, 2 * PAGE) is None
    assert mapping.is_lost
    assert read(mapping, 0, 8) is None
    assert not mapping.write(0, memoryview(b"\xff"))
    assert client.contents == CONTENTS[:PAGE]
    assert read(other, 0, len(CONTENTS)) == CONTENTS
    other.close()


def test_a_write_to_what_is_not_there_goes_nowhere(client: ClientSegment, mapping: Mapping) -> None:
    client.truncate(PAGE)
    assert not mapping.write(2 * PAGE, memoryview(b"\xff" * 8))
    assert client.contents == CONTENTS[:PAGE]


def test_in_any_thread(client: ClientSegment, mapping: Mapping) -> None:
    client.truncate(0)
    found: list[bytes | None] = []
    threads = [threading.Thread(target=lambda: found.append(read(mapping, 0, len(CONTENTS)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [None] * 4


def test_what_cannot_be_mapped(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mapped(descriptor, 0, 2**55) is None
    assert mapped(descriptor, 0, 2**64 - 1) is None
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    assert mapped(descriptor, 0, 8) is None


FAULT = """
    import mmap, tempfile
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * mmap.PAGESIZE)
        other = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
    other[0]
"""
SIGNAL = """
    import os, signal
    os.kill(os.getpid(), signal.SIGBUS)
"""
GUARDED = """
    import os
    from protocol.shared_memory.mapping import mapped
    descriptor = os.memfd_create("segment")
    os.truncate(descriptor, 4096)
    mapping = mapped(descriptor, 0, 4096)
    assert mapping is not None
    os.truncate(descriptor, 0)
    assert not mapping.read_into(memoryview(bytearray(8)), 0)
"""
HANDLER = """
    import faulthandler
    faulthandler.enable()
"""


@pytest.mark.slow
@pytest.mark.parametrize("strange", [FAULT, SIGNAL], ids=["a fault", "sent"])
@pytest.mark.parametrize(
    ("before", "is_told"),
    [(GUARDED, False), (HANDLER + GUARDED, True), (GUARDED + HANDLER, True), (GUARDED + HANDLER + GUARDED, True)],
    ids=["alone", "after another handler", "before it", "around it"],
)
def test_what_is_strange_ends_the_process_as_ever(before: str, is_told: bool, strange: str) -> None:
    """Once what was there before has had its say."""
    code = textwrap.dedent(before + strange) + "\nprint('lives')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == ""
    assert ("Fatal Python error: Bus error" in done.stderr) is is_told
