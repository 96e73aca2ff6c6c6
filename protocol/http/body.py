"""Limits of request bodies: size, and minimum rate; for every version of HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from protocol.errors import ServerError
from protocol.http.errors import BodyTimeout

# Bytes in a second that a body must come with, once the time for a pause is over.
MIN_BODY_RATE = 1024


class TooLong(Protocol):
    """Makes the error for a body of at least that many bytes."""

    def __call__(self, size: int, limit: int, /) -> ServerError: ...


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """The size limit of a body, and the error where it is exceeded."""

    maximum: int
    error: TooLong

    def check(self, size: int) -> None:
        if size > self.maximum:
            raise self.error(size, self.maximum)


def body_timeout(received: int, seconds: float) -> BodyTimeout:
    return BodyTimeout(
        f"the request body is not complete: {received} bytes came within {seconds:.0f} seconds. "
        f"Use --http-body-timeout to allow longer pauses."
    )
