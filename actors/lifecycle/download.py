"""Model download: copies the files of a model in an object store to local disk before it is loaded.

Flow: model control → [model download] → repository.stores, in threads. Runs in the task of the load that needs them;
cancelled, it leaves only complete files in the cache.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import trio

from protocol.errors import ServerError, Unavailable
from repository.held_directory import HeldDirectory
from repository.layout import ModelDirectory, is_configuration
from repository.stores.download import FileDownload, LocalCopy, Part
from repository.stores.errors import AccessDenied, ObjectChanged

logger = logging.getLogger("trioton.object_store")

# How many parts of files are on their way at a time.
PARALLEL_PARTS = 8
PROGRESS_SECONDS = 5.0
# Before a part that broke off is asked for again; the store's client has retried by itself before.
RETRY_PAUSES = (0.5, 2.0)
_MEGABYTE = 1e6


@asynccontextmanager
async def at_hand(
    directory: ModelDirectory, *, only_configuration: bool = False, limit: trio.CapacityLimiter | None = None
) -> AsyncIterator[tuple[ModelDirectory, HeldDirectory | None]]:
    """Within this block, the model where backends can read it: itself, if it is on a local disk, else a copy that lasts
    until the end of the block and as long as it is shared.

    Args:
        limit: how many parts of files are downloaded at a time; by default `PARALLEL_PARTS` of this model.

    Raises:
        ServerError: the store or the disk has failed.
    """
    if directory.remote is None:
        yield directory, None
        return
    limit = limit or trio.CapacityLimiter(PARALLEL_PARTS)
    copy = await _download(directory, limit, only_configuration=only_configuration)
    try:
        yield replace(copy.directory, own_name=directory.own_name, namespace=directory.namespace), copy
    finally:
        await release(copy)


async def release(files: HeldDirectory) -> None:
    with trio.CancelScope(shield=True):  # a few files to remove
        await trio.to_thread.run_sync(files.release)


async def _download(directory: ModelDirectory, limit: trio.CapacityLimiter, *, only_configuration: bool) -> LocalCopy:
    assert directory.remote is not None
    wanted: Callable[[str], bool] = is_configuration if only_configuration else lambda path: True
    copy = await trio.to_thread.run_sync(LocalCopy, directory.name, directory.remote, wanted)
    try:
        if copy.missing:
            # Of a configuration nobody wants to know.
            level = logging.DEBUG if only_configuration else logging.INFO
            await _fetch_all(copy, directory.remote.url, limit, level)
            await trio.to_thread.run_sync(directory.remote.cache.trim)
    except BaseException:
        with trio.CancelScope(shield=True):  # a few files to remove
            await trio.to_thread.run_sync(copy.abandon)
        raise
    return copy


async def _fetch_all(copy: LocalCopy, url: str, limit: trio.CapacityLimiter, level: int) -> None:
    began = trio.current_time()
    name, size = copy.directory.name, copy.missing_bytes / _MEGABYTE
    logger.log(level, "downloading '%s' from %s: %d files, %.1f MB", name, url, len(copy.missing), size)
    failures: list[ServerError] = []
    async with trio.open_nursery() as progress:
        progress.start_soon(_report, copy, began)
        async with trio.open_nursery() as files:
            for file in copy.missing:
                files.start_soon(_fetch_file, copy, file, limit, failures, files.cancel_scope)
        progress.cancel_scope.cancel()
    if failures:
        raise failures[0]
    seconds = trio.current_time() - began
    logger.log(level, "downloaded '%s': %.1f MB in %.1f s, %d more files were cached", name, size, seconds, copy.cached)


async def _fetch_file(
    copy: LocalCopy,
    file: FileDownload,
    limit: trio.CapacityLimiter,
    failures: list[ServerError],
    scope: trio.CancelScope,
) -> None:
    """The first failure of any file cancels the others."""
    try:
        async with trio.open_nursery() as parts:
            for part in file.parts:
                parts.start_soon(_fetch_part, copy, part, limit, failures, scope)
        await trio.to_thread.run_sync(copy.finish, file, limiter=limit)
    except ServerError as error:
        failures.append(error)
        scope.cancel()


async def _fetch_part(
    copy: LocalCopy, part: Part, limit: trio.CapacityLimiter, failures: list[ServerError], scope: trio.CancelScope
) -> None:
    # A store that hangs must not hold up a server that stops: the thread ends by itself, with the store's answer.
    fetch = partial(
        trio.to_thread.run_sync,
        copy.fetch,
        part,
        trio.from_thread.check_cancelled,
        abandon_on_cancel=True,
        limiter=limit,
    )
    try:
        for pause in RETRY_PAUSES:
            try:
                return await fetch()
            except (ObjectChanged, AccessDenied):
                raise
            except Unavailable as error:
                logger.warning("%s; trying again in %g s", error, pause)
                await trio.sleep(pause)
        await fetch()
    except ServerError as error:
        failures.append(error)
        scope.cancel()


async def _report(copy: LocalCopy, began: float) -> None:
    while True:
        await trio.sleep(PROGRESS_SECONDS)
        logger.info(
            "downloading '%s': %.1f of %.1f MB, %.1f MB/s",
            copy.directory.name,
            copy.received / _MEGABYTE,
            copy.missing_bytes / _MEGABYTE,
            copy.received / _MEGABYTE / (trio.current_time() - began),
        )
