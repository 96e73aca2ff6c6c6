"""Pictures of an engine's requests: fetched where they are URLs, then unpacked in threads, within bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import trio

from backends.engines.tensors.images import Given, ImageRoom, Images, decode_images
from protocol.errors import InvalidArgument
from protocol.media.fetcher import MediaFetcher
from protocol.outgoing.urls import UrlError

_MOST_DECODERS = 2


class PictureReader:
    """That of one engine. `media` fetches what clients name by URLs, if that is allowed."""

    def __init__(self, where: str, media: MediaFetcher | None, room: ImageRoom | None = None) -> None:
        self._where = where
        self._media = media
        self._room = room or ImageRoom()
        self._decoders = trio.CapacityLimiter(_MOST_DECODERS)

    async def read(self, given: Sequence[Given]) -> Images:
        """Cancelled, nothing is held.

        Raises:
            ServerError: one is no picture or cannot be fetched, or they are too large.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            self._room.take(size, self._where)
            taken += size

        try:
            if any(isinstance(each.data, str) for each in given):
                given = await self._fetched(given, take)
            decode = functools.partial(decode_images, given, self._where)
            found = await trio.to_thread.run_sync(decode, abandon_on_cancel=True, limiter=self._decoders)
        finally:
            self._room.give(taken)
        return self._room.hold(found, self._where)

    async def _fetched(self, given: Sequence[Given], take: Callable[[int], None]) -> list[Given]:
        urls = {each.data: each.input for each in given if isinstance(each.data, str)}
        if self._media is None:
            url, name = next(iter(urls.items()))
            raise self._unfetched(name, url, "pictures are not fetched here: expected a data URL")
        try:
            found = await self._media.fetch_all(urls, take)
        except UrlError as error:
            raise self._unfetched(urls[error.url], error.url, str(error)) from None
        return [each._replace(data=found[each.data]) if isinstance(each.data, str) else each for each in given]

    def _unfetched(self, name: str, url: str, reason: str) -> InvalidArgument:
        return InvalidArgument(f"{self._where}: {name}: '{url:.80}' cannot be fetched: {reason}")
