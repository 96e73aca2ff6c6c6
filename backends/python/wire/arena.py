"""Shared memory of one worker: memfd segments for the inputs and outputs of its batches.

Segments are memfds: they have no name in any file system, so nothing can be left behind however the processes end. They
are sealed at their size, so a worker cannot pull the memory away from under the server. Protocol: see
`worker.trioton_worker.frames`.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import trio
from numpy.typing import NDArray

from backends.python.settings import PythonSettings
from backends.python.wire.tensor_columns import SharedMemory
from backends.python.worker.trioton_worker.frames import INLINE_BYTE_SIZE, INPUT_SLOTS, OUTPUT_SLOTS

logger = logging.getLogger("trioton.backends.python")

# Of a segment so much is given back to the system at a time: less than a millisecond of work.
_RELEASED_AT_ONCE = 4 << 20


class Segment:
    """Memory that both sides have mapped; both know it by its slot. `view` is the server's."""

    __slots__ = ("_lent", "_map", "_memory", "descriptor", "is_closed", "is_empty", "is_sent", "size", "slot", "view")

    def __init__(self, size: int, slot: int) -> None:
        self.size = size
        self.slot = slot
        self.is_sent = False
        self.is_closed = False
        self.is_empty = True  # none of its memory is there, until somebody writes to it
        self._lent: weakref.ref[NDArray[np.uint8]] | None = None
        self.descriptor = os.memfd_create("trioton", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.view = memoryview(self._map)
        self._memory = np.frombuffer(self._map, np.uint8)
        self._memory.flags.writeable = False

    @property
    def is_lent(self) -> bool:
        return self._lent is not None and self._lent() is not None

    def lend(self) -> memoryview:
        """All of it, read-only. It `is_lent` while anything holds this or a part of it."""
        memory = None if self._lent is None else self._lent()
        if memory is None:
            memory = self._memory[:]  # what is cut from it holds this, which can be asked for
            self._lent = weakref.ref(memory)
        return memory.data

    def release(self, start: int) -> None:
        """Give a part of its memory back to the system, for both sides; what is read there from now on is zeros."""
        self._map.madvise(mmap.MADV_REMOVE, start, min(_RELEASED_AT_ONCE, self.size - start))

    def close(self) -> None:
        """Unmap; what the worker has mapped stays until it unmaps it, and what is lent until it is released."""
        self.is_closed = True
        self.view.release()
        del self._memory
        with suppress(BufferError):
            self._map.close()
        os.close(self.descriptor)


class SegmentPool:
    """The two segments of one direction: each batch has one, by its slot, and the other is lent or waits. Together they
    have `shm_limit_byte_size` bytes at most."""

    def __init__(self, settings: PythonSettings, slots: range) -> None:
        self._settings = settings
        self._slots = slots
        self._both = sum(slots)
        self._in_slots: dict[int, Segment] = {}
        self._room = settings.shm_limit_byte_size  # that none of them takes

    def segment_of(self, size: int) -> Segment | None:
        """One of at least so many bytes that is not lent; None where that would be beyond the limit.

        Raises OSError where the system gives none.
        """
        found = self._in_slots
        for slot in self._slots:
            segment = found.get(slot)
            if segment is None or not segment.is_lent:
                if segment is not None and segment.size >= size:
                    return segment
                return self._made(slot, size)
        return None

    def show(self, segment: Segment) -> SharedMemory:
        """What it holds, lent where there is another one for the next batch."""
        other = self._in_slots.get(self._both - segment.slot)
        if (self._room >= segment.size) if other is None else not other.is_lent:
            return SharedMemory(segment.lend(), is_lent=True)
        return SharedMemory(segment.view, is_lent=False)

    def drop(self, segment: Segment) -> None:
        """Never write to it again."""
        if self._in_slots.get(segment.slot) is segment:
            del self._in_slots[segment.slot]
            self._room += segment.size
            segment.close()

    def held(self) -> list[Segment]:
        """The segments with unused memory, while no batch has any."""
        return [segment for segment in self._in_slots.values() if not (segment.is_empty or segment.is_lent)]

    @property
    def has_memory(self) -> bool:
        return any(not segment.is_empty for segment in self._in_slots.values())

    @property
    def byte_size(self) -> int:
        """Of the segments that have memory."""
        return sum(segment.size for segment in self._in_slots.values() if not segment.is_empty)

    def take_unsent(self) -> list[Segment]:
        """The segments that the worker has not been sent yet."""
        unsent = [segment for segment in self._in_slots.values() if not segment.is_sent]
        for segment in unsent:
            segment.is_sent = True
        return unsent

    def close(self) -> None:
        for segment in list(self._in_slots.values()):
            self.drop(segment)

    def _made(self, slot: int, size: int) -> Segment | None:
        """A new one in the slot, larger than the one that was there."""
        settings = self._settings
        before = self._in_slots.get(slot)
        room = self._room + (before.size if before is not None else 0)
        if size > room:
            return None
        wanted = max(size, settings.shm_default_byte_size, 2 * before.size if before is not None else 0)
        wanted = -(-wanted // settings.shm_growth_byte_size) * settings.shm_growth_byte_size
        if before is not None:
            self.drop(before)
        made = self._in_slots[slot] = Segment(min(wanted, room), slot)
        self._room -= made.size
        return made


class Arena:
    """Decides which segments a batch uses."""

    def __init__(self, settings: PythonSettings) -> None:
        self._settings = settings
        self.is_usable = hasattr(os, "memfd_create") and not settings.is_inline
        self.inputs = SegmentPool(settings, INPUT_SLOTS)
        self.outputs = SegmentPool(settings, OUTPUT_SLOTS)
        self.output_size = 0  # what batches have wanted so far
        self.has_unsent = False  # segments that the worker does not know yet
        self.uses = 0  # how often a batch was given a segment
        self._used = trio.Event()

    def input_segment(self, size: int) -> Segment | None:
        """A segment that holds `size` bytes of inputs; None where they are to cross in the frame."""
        return self._segment_of(self.inputs, size)

    def output_segment(self) -> Segment | None:
        """A segment for what outputs there may be; None where they are to cross in the frame."""
        return self._segment_of(self.outputs, self.output_size) if self.output_size else None

    def take_unsent(self) -> list[Segment]:
        """The segments that the worker has not been sent yet."""
        self.has_unsent = False
        return self.inputs.take_unsent() + self.outputs.take_unsent()

    def note_wanted(self, size: int) -> None:
        """Outputs of a batch needed more room."""
        if INLINE_BYTE_SIZE < size <= self._settings.shm_limit_byte_size:
            self.output_size = max(size, self.output_size)

    async def wait_used(self) -> None:
        """Until there is memory in any segment."""
        while not (self.inputs.has_memory or self.outputs.has_memory):
            self._used = trio.Event()
            await self._used.wait()

    async def release(self, is_idle: Callable[[], bool]) -> bool:
        """Release all unused memory to the system, in steps with checkpoints between. False
        where it did not come to its end: a batch has begun."""
        uses = self.uses
        for segment in (*self.inputs.held(), *self.outputs.held()):
            for start in range(0, segment.size, _RELEASED_AT_ONCE):
                if self.uses != uses or segment.is_closed or not is_idle():
                    return False
                segment.release(start)
                await trio.lowlevel.checkpoint()
            if self.uses != uses or segment.is_closed:
                return False
            segment.is_empty = True
        return True

    @property
    def byte_size(self) -> int:
        """Of the segments that have memory: what was never used, or was released, has none."""
        return self.inputs.byte_size + self.outputs.byte_size

    def close(self) -> None:
        self.inputs.close()
        self.outputs.close()

    def _segment_of(self, pool: SegmentPool, size: int) -> Segment | None:
        if size <= INLINE_BYTE_SIZE or not self.is_usable:
            return None
        try:
            segment = pool.segment_of(size)
        except OSError as error:
            logger.warning("no shared memory of %d bytes (%s): tensors cross in the socket", size, error)
            self.is_usable = False
            return None
        if segment is not None:
            if not segment.is_sent:
                self.has_unsent = True
            self.uses += 1
            if segment.is_empty:
                segment.is_empty = False
                self._used.set()
        return segment
