"""The text of a server's metrics, rendered a little at a time, and once for all who ask for it meanwhile.

Flow: edges → [metrics text] → the server's metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.sync.sliced import SharedWork, Sliced
from protocol.zipped import deflate_parts

_LEVEL = 1  # the text repeats itself so much that this makes a twentieth of it


class MetricsText:
    """That of one server. `render` gives the text in parts, in OpenMetrics if its argument says so."""

    def __init__(self, render: Callable[[bool], Sliced[list[bytes]]]) -> None:
        self._render = render
        self._shared: dict[tuple[bool, str], SharedWork[bytes]] = {}

    async def text(self, *, is_openmetrics: bool = False, coding: str = "") -> bytes:
        """In Prometheus' text format or in OpenMetrics; `coding` is one of `zipped.ENCODINGS`, empty for none. Holds
        the loop for a slice at a time; cancelled, it costs nothing more."""
        key = (is_openmetrics, coding)
        work = self._shared.get(key)
        if work is None:
            work = self._shared[key] = SharedWork(partial(self._rendered, is_openmetrics, coding))
        return await work.result()

    def _rendered(self, is_openmetrics: bool, coding: str) -> Sliced[bytes]:
        parts = yield from self._render(is_openmetrics)
        if not coding:
            return b"".join(parts)
        return (yield from deflate_parts(parts, coding, _LEVEL))
