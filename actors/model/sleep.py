"""Sleep of one model version: puts all of its instances to sleep, or none, and wakes them. Called by the model."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from backends.interface import Backend
from protocol.errors import Internal, ServerError, Unavailable

logger = logging.getLogger("trioton.model")


async def put_to_sleep(backends: Sequence[Backend], level: int) -> None:
    """Raises ServerError: one cannot sleep now; all are awake then, as far as they can be."""
    failures = await _each(backends, lambda backend: backend.sleep(level))
    if failures:
        for error in await _each(backends, lambda backend: backend.wake()):
            if not isinstance(error, Unavailable):
                logger.error("%s", error)
        raise failures[0]


async def wake(backends: Sequence[Backend]) -> None:
    """Raises ServerError: one could not be woken, and sleeps on; the others take requests."""
    failures = await _each(backends, lambda backend: backend.wake())
    if failures:
        raise failures[0]


async def _each(backends: Sequence[Backend], work: Callable[[Backend], Awaitable[None]]) -> list[ServerError]:
    """All at once; errors name the instance."""
    failures: list[ServerError] = []

    async def run(backend: Backend) -> None:
        try:
            await work(backend)
        except ServerError as error:
            failures.append(error)
        except Exception as error:
            logger.exception("model instance '%s' could not fall asleep or wake up", backend.spec.name)
            failures.append(Internal(f"model instance '{backend.spec.name}': {type(error).__name__}: {error}"))

    async with trio.open_nursery() as nursery:
        for backend in backends:
            nursery.start_soon(run, backend)
    return failures
