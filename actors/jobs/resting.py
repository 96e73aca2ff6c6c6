"""Resting: lets a thread work for a part of the time only. Blocks.

Python in a thread takes the interpreter, and with it the server's loop, from whoever else wants it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def rested(rows: Iterable[T], share: float) -> Iterator[T]:
    """The same rows; between two of them the thread sleeps so long that computing takes it this share of the time.
    Waiting for files does not count. Where it is not used to its end, `rows` can be read on."""
    began = time.thread_time()
    for row in rows:  # not `yield from`, which would close them
        yield row
        if share < 1:
            time.sleep((time.thread_time() - began) * (1 / share - 1))
            began = time.thread_time()
