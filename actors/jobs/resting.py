"""Resting: lets a thread work for a part of the time only. Blocks.

Python in a thread takes the interpreter, and with it the server's loop, from whoever else wants it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# It works for so long at a time: who has to wait for it at all may wait for that, and the others for nothing.
TOGETHER_SECONDS = 0.004


def rested(rows: Iterable[T], share: float) -> Iterator[T]:
    """The same rows; between some of them, and after the last, the thread sleeps so long that computing takes it this
    share of the time. Waiting for files does not count. Where it is not used to its end, `rows` can be read on."""
    began = time.thread_time()
    for row in rows:  # not `yield from`, which would close them
        yield row
        if share < 1 and time.thread_time() - began >= TOGETHER_SECONDS:
            began = _slept(began, share)
    if share < 1:
        _slept(began, share)


def _slept(began: float, share: float) -> float:
    """Returns the thread's time."""
    time.sleep((time.thread_time() - began) * (1 / share - 1))
    return time.thread_time()
