"""CPU affinity: binds threads, and the processes that they start, to cores. An empty set of cores stands for all.

Linux only: elsewhere nothing is bound.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

logger = logging.getLogger("trioton.affinity")


def usable_cores() -> frozenset[int]:
    """The cores that this process may use; empty where the system does not tell."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def bind_thread(cores: Collection[int]) -> None:
    """Keep the calling thread, and the threads that it starts from now on, on these cores."""
    if cores and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:  # taken away from the container since the start
            logger.warning("cannot bind to CPU cores %s: %s", sorted(cores), error)


def unbind_thread() -> None:
    """Let the calling thread run where the process may, whatever it inherited from the thread that started it."""
    if hasattr(os, "sched_getaffinity"):
        bind_thread(os.sched_getaffinity(os.getpid()))  # by its number, the process's first thread


@contextmanager
def bound_children(cores: Collection[int]) -> Iterator[None]:
    """Processes that the calling thread starts in this block, and all that is theirs, stay on these cores."""
    if not cores:
        yield
        return
    before = usable_cores()
    bind_thread(cores)
    try:
        yield
    finally:
        bind_thread(before)
