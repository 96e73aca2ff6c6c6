"""Senders that are processes of their own: each has a part of the load, and together they look like one generator.

    here: job and offers (pickled) → [sender_process] → a line of JSON for each slice → here: added up

A process ends with its standard input, so that none outlives this one, whatever ends it.
"""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import msgspec
import trio

from trioton.perf.caller import Control, Data, DataError, ModelDescription, Part, Result, TargetError
from trioton.perf.figures import NANOSECONDS, Figures
from trioton.perf.generator import Generator, Offer
from trioton.perf.sender import unwrapped
from trioton.perf.target import Target

# All begin at the same moment, which is so far ahead that each has heard of it by then.
_START_AHEAD_SECONDS = 0.1
_END_SECONDS = 10.0
_MOST_LINE = 64 << 20
LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class SenderJob:
    """All that one sender needs to know."""

    target: Target
    description: ModelDescription
    data: Data
    part: Part


class SenderSaid(msgspec.Struct, omit_defaults=True):
    """A line of a sender: that it is ready, a slice, that the load has ended, or why it cannot go on."""

    is_ready: bool = False
    figures: dict[str, Any] | None = None
    has_ended: bool = False
    data_error: str = ""
    target_error: str = ""


def framed(value: object) -> bytes:
    """For a sender's standard input: length and pickle."""
    data = pickle.dumps(value)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


@asynccontextmanager
async def open_senders(
    target: Target, description: ModelDescription, data: Data, control: Control, count: int
) -> AsyncIterator[Generator]:
    """While the block lasts.

    Raises:
        DataError, TargetError: as `open_sender` in any of them; or one has ended.
    """
    del control  # each asks by its own
    with unwrapped():
        async with trio.open_nursery() as nursery:
            senders = [await nursery.start(_run_process) for _ in range(count)]
            for index, sender in enumerate(senders):
                await sender.tell(SenderJob(target, description, data, Part(index, count)))
            for sender in senders:
                await sender.hear()
            yield _Senders(senders)
            for sender in senders:
                await sender.close()


class _Sender:
    """One process: what it is told, and what it says."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._rest = b""

    async def tell(self, value: object) -> None:
        """Raises TargetError: it has ended."""
        try:
            await self._stdin.send_all(framed(value))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise TargetError("a sender's process has ended") from None

    async def hear(self) -> SenderSaid:
        """The next line. Raises DataError, TargetError."""
        while b"\n" not in self._rest:
            part = await self._stdout.receive_some(1 << 20)
            if not part or len(self._rest) > _MOST_LINE:
                raise TargetError("a sender's process has ended")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        said = msgspec.json.decode(line, type=SenderSaid)
        if said.data_error:
            raise DataError(said.data_error)
        if said.target_error:
            raise TargetError(said.target_error)
        return said

    async def close(self) -> None:
        await self._stdin.aclose()


async def _run_process(*, task_status: trio.TaskStatus[_Sender]) -> None:
    command = [sys.executable, "-m", "trioton.perf.sender_process"]
    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is for this process, which then ends its senders
    )
    try:
        task_status.started(_Sender(process))
        await process.wait()
    finally:
        with trio.CancelScope(shield=True):
            if process.stdin is not None:
                await process.stdin.aclose()  # which ends it
            with trio.move_on_after(_END_SECONDS):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()


class _Senders:
    """Implements `Generator` by all of them."""

    def __init__(self, senders: list[_Sender]) -> None:
        self._senders = senders

    @asynccontextmanager
    async def offer(
        self, offer: Offer, observe: Callable[[Result], None] | None = None
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Figures]]:
        """Raises ValueError with `observe`: results stay where they are."""
        if observe is not None:
            raise ValueError("results are observed in this process only: give one sender")
        shared = replace(offer, start=time.perf_counter_ns() + round(_START_AHEAD_SECONDS * NANOSECONDS))
        for sender in self._senders:
            await sender.tell(shared)
        to_reader, slices = trio.open_memory_channel[Figures](64)
        with unwrapped():
            async with slices, trio.open_nursery() as nursery:
                nursery.start_soon(self._add_up, to_reader)
                yield slices
                slices.close()
                for sender in self._senders:
                    await sender.tell(None)

    async def _add_up(self, to_reader: trio.MemorySendChannel[Figures]) -> None:
        """Until all of them say that the load has ended."""
        async with to_reader:
            queues: list[tuple[trio.MemorySendChannel[Figures], trio.MemoryReceiveChannel[Figures]]] = [
                trio.open_memory_channel[Figures](math.inf) for _ in self._senders
            ]
            async with trio.open_nursery() as nursery:
                for sender, (to_sum, _) in zip(self._senders, queues, strict=True):
                    nursery.start_soon(_slices_of, sender, to_sum)
                left = [received for _, received in queues]
                while left:
                    whole: Figures | None = None
                    lengths: list[float] = []
                    for received in list(left):
                        try:
                            figures = await received.receive()
                        except trio.EndOfChannel:
                            left.remove(received)
                            continue
                        lengths.append(figures.seconds)
                        if whole is None:
                            whole = figures
                        else:
                            whole.add(figures)
                    if whole is not None:
                        whole.seconds = fmean(lengths)  # what one is late in this slice is not late in the next
                        with suppress(trio.BrokenResourceError):  # the reader has heard enough
                            await to_reader.send(whole)


async def _slices_of(sender: _Sender, to_sum: trio.MemorySendChannel[Figures]) -> None:
    async with to_sum:
        while not (said := await sender.hear()).has_ended:
            if said.figures is not None:
                to_sum.send_nowait(Figures.from_json(said.figures))
