"""Cache of compiled executables of one model on one device, by input shapes, least recently used dropped.

Shared by the instances on the device, which come from threads of their own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from backends.jax.errors import Shapes, told_shapes

logger = logging.getLogger("trioton.jax")


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while it is compiled; others of the same shapes wait for it
        self.executable: Any = None


class Executables:
    """`compile` makes one; it may be called for different shapes at the same time. There are at most `limit`."""

    def __init__(self, compile: Callable[[Shapes], Any], limit: int, model: str) -> None:
        self._compile = compile
        self._limit = limit
        self._model = model
        self._lock = threading.Lock()
        self._entries: OrderedDict[Shapes, _Entry] = OrderedDict()
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, shapes: Shapes) -> Any:
        """The executable for these shapes; compiled now, which takes seconds, where there is none.

        Raises whatever `compile` raises; then the next call tries again.
        """
        with self._lock:
            entry = self._entries.get(shapes)
            if entry is None:
                entry = self._entries[shapes] = _Entry()
                self._let_go()
            else:
                self._entries.move_to_end(shapes)
        if entry.executable is None:
            with entry.lock:
                if entry.executable is None:
                    self._fill(entry, shapes)
        return entry.executable

    def _fill(self, entry: _Entry, shapes: Shapes) -> None:
        began = time.monotonic()
        try:
            entry.executable = self._compile(shapes)
        except BaseException:
            with self._lock:
                if self._entries.get(shapes) is entry:
                    del self._entries[shapes]
            raise
        logger.info(
            "model '%s': compiled for the shapes %s in %.2f s",
            *(self._model, told_shapes(shapes), time.monotonic() - began),
        )

    def _let_go(self) -> None:
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "model '%s': its requests have more shapes than the %d that MAX_COMPILED_SHAPES keeps compiled, so "
                    "some are compiled again and again; shape rules pad them to fewer",
                    *(self._model, self._limit),
                )
