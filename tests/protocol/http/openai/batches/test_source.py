"""The source of lines: what it reads at once, and what it holds."""

from __future__ import annotations

import random

import pytest
import trio

from protocol.errors import NotFound
from protocol.http.openai.batches.source import LineSource

LINES = [bytes([65 + number % 26]) * (50 + number % 400) for number in range(5000)]
STARTS = [sum(map(len, LINES[:number])) for number in range(5000)]


class Files:
    def __init__(self) -> None:
        self.reads: list[tuple[str, int, int]] = []

    async def read_file(self, payload: str, start: int, size: int) -> bytes:
        self.reads.append((payload, start, size))
        await trio.lowlevel.checkpoint()
        if payload == "gone":
            raise NotFound("gone")
        return b"".join(LINES)[start : start + size]


async def test_lines_that_follow_each_other_take_few_reads() -> None:
    files = Files()
    source = LineSource(files)
    for start, line in zip(STARTS, LINES, strict=True):
        assert bytes(await source.read("a", start, len(line))) == line
    assert len(files.reads) <= 7


async def test_many_that_miss_take_one_read() -> None:
    files = Files()
    source = LineSource(files)
    found: list[bytes] = []

    async def read(number: int) -> None:
        found.append(bytes(await source.read("a", STARTS[number], len(LINES[number]))))

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(read, number)
    assert sorted(found) == sorted(LINES[:60])
    assert len(files.reads) == 1


async def test_any_order_gives_the_right_lines() -> None:
    source = LineSource(Files())
    numbers = list(range(0, 5000, 7))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        payload = f"file {number % 20}"
        assert bytes(await source.read(payload, STARTS[number], len(LINES[number]))) == LINES[number]
    assert len(source._blocks) <= 8


async def test_a_long_line_is_read_alone() -> None:
    files = Files()
    source = LineSource(files)
    assert len(await source.read("a", 5, 300_000)) == 300_000
    assert files.reads == [("a", 5, 300_000)]
    assert not source._blocks


async def test_a_file_that_is_gone() -> None:
    with pytest.raises(NotFound):
        await LineSource(Files()).read("gone", 0, 10)
