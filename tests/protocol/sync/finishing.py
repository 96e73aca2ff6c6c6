"""Sliced work done in one go."""

from __future__ import annotations

from typing import TypeVar

from protocol.sync.sliced import Sliced

T = TypeVar("T")


def finish(work: Sliced[T]) -> T:
    """Its result. Raises what it raises."""
    while True:
        try:
            next(work)
        except StopIteration as stopped:
            result: T = stopped.value
            return result
