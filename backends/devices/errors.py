"""Errors of a device's runtime, translated to ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from backends.out_of_memory import is_out_of_memory, out_of_memory
from protocol.errors import ServerError, Unavailable


@contextmanager
def device_errors(place: str) -> Iterator[None]:
    """Around calls of cupy. `place` begins the text."""
    try:
        yield
    except ServerError:
        raise
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise out_of_memory(place, error) from error
        raise Unavailable(f"{place}: {error}") from error
