"""The shared memory of one instance: one segment for inputs and one for outputs, made by the server alone.

Segments are memfds: they have no name in any file system, so nothing can be left behind however the processes end.
They are sealed at their size, so a worker cannot pull the memory away from under the server. Protocol: see
`worker.trioton_worker.frames`.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os

from backends.python.settings import PythonSettings
from backends.python.worker.trioton_worker.frames import INLINE_BYTE_SIZE

logger = logging.getLogger("trioton.backends.python")


class Segment:
    """Memory that both sides have mapped. `view` is the server's."""

    __slots__ = ("_map", "descriptor", "is_sent", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_sent = False
        self.descriptor = os.memfd_create("trioton", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.view = memoryview(self._map)

    def close(self) -> None:
        """Unmap; what the worker still has mapped stays until it lets go."""
        self.view.release()
        self._map.close()
        os.close(self.descriptor)


class Arena:
    """Decides which segment a batch uses, and when a segment is made anew."""

    def __init__(self, settings: PythonSettings) -> None:
        self._settings = settings
        self.is_usable = hasattr(os, "memfd_create") and not settings.is_inline
        self.inputs: Segment | None = None
        self.outputs: Segment | None = None
        self.has_unsent = False  # segments that the worker does not know yet

    def input_segment(self, size: int) -> Segment | None:
        """A segment that holds `size` bytes of inputs; None where they are to cross in the frame."""
        if size <= INLINE_BYTE_SIZE or not self._may_hold(size):
            return None
        self.inputs = self._at_least(self.inputs, size)
        return self.inputs

    def take_unsent(self) -> dict[str, Segment]:
        """The segments that the worker does not know yet, by the name that a frame gives them."""
        self.has_unsent = False
        unsent = {
            name: segment
            for name, segment in (("inputs", self.inputs), ("outputs", self.outputs))
            if segment is not None and not segment.is_sent
        }
        for segment in unsent.values():
            segment.is_sent = True
        return unsent

    def note_answer(self, *, kept: bool, wanted: int) -> None:
        """Prepare the next batch by what the worker said: the model keeps inputs; the outputs needed more room."""
        if kept and self.inputs is not None:
            self.inputs.close()
            self.inputs = None
        if wanted > INLINE_BYTE_SIZE and self._may_hold(wanted):
            self.outputs = self._at_least(self.outputs, wanted)

    def close(self) -> None:
        for segment in (self.inputs, self.outputs):
            if segment is not None:
                segment.close()
        self.inputs = self.outputs = None

    def _may_hold(self, size: int) -> bool:
        return self.is_usable and size <= self._settings.shm_limit_byte_size

    def _at_least(self, segment: Segment | None, size: int) -> Segment | None:
        """The segment itself if it is large enough, else a new one in its place; None where the system gives none."""
        if segment is not None and segment.size >= size:
            return segment
        settings = self._settings
        wanted = max(size, settings.shm_default_byte_size, 2 * segment.size if segment is not None else 0)
        wanted = -(-wanted // settings.shm_growth_byte_size) * settings.shm_growth_byte_size
        if segment is not None:
            segment.close()
        try:
            made = Segment(min(wanted, settings.shm_limit_byte_size))
            self.has_unsent = True
            return made
        except OSError as error:
            logger.warning("no shared memory of %d bytes (%s): tensors cross in the socket", wanted, error)
            self.is_usable = False
            return None
