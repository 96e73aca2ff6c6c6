"""Sliced work, done at once."""

from __future__ import annotations

from typing import TypeVar

from protocol.sync.sliced import Sliced

T = TypeVar("T")


def finished(work: Sliced[T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
