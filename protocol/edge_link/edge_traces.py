"""Traces of requests in an edge process, which does not know yet if they are to be traced: the core decides that.

    edge → [edge trace] → with the request → core samples it → "it is traced" → when it has ended, what happened here

Of a request that is not traced nothing more crosses.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from protocol.edge_link.texts import Attribute, Attributes, StampsText, TraceText
from protocol.server_settings import Trace, TracedTensor

# A stream may answer without end.
_MOST_STAMPS = 4096
# What clients ask for may be larger.
_MOST_INTEGER = 1 << 63


class TellsTraces(Protocol):
    """The link to the core."""

    def tell_stamps(self, text: StampsText) -> None:
        """The end of a request that is traced."""

    def tell_trace(self, model: str, text: TraceText) -> None:
        """The end of a request that has not come to the core, which may trace it, too."""


class EdgeTrace:
    """Implements `protocol.server_settings.Trace`. The two headers are there if they matter.

    Attributes:
        is_taken: the core traces the request.
    """

    __slots__ = (
        *("_attributes", "_has_ended", "_link", "_model", "_number", "_stamps", "_traceparent", "_tracestate"),
        "is_taken",
    )

    def __init__(self, link: TellsTraces, model: str, traceparent: str = "", tracestate: str = "") -> None:
        self.is_taken = False
        self._link = link
        self._model = model
        self._traceparent = traceparent
        self._tracestate = tracestate
        self._stamps: list[tuple[str, int]] = []
        self._attributes: dict[str, Attribute] = {}
        self._number = 0  # none, until it is announced
        self._has_ended = False

    def announce(self, number: int) -> TraceText:
        """The request of that number goes to the core now."""
        self._number = number
        return self._text()

    def _text(self) -> TraceText:
        stamps, self._stamps = self._stamps, []
        attributes, self._attributes = self._attributes, {}
        return TraceText(self._traceparent, self._tracestate, stamps, attributes)

    def stamp(self, activity: str, ns: int | None = None) -> None:
        if len(self._stamps) < _MOST_STAMPS:
            self._stamps.append((activity, time.monotonic_ns() if ns is None else ns))

    def identify(self, model_version: int, request_id: str) -> None:
        pass

    def record_tensors(self, activity: str, tensors: Sequence[TracedTensor]) -> None:
        pass

    def annotate(self, attributes: Attributes) -> None:
        for name, value in attributes.items():
            self._attributes[name] = _crossing(value)

    def child(self, model: str) -> Trace | None:
        return None

    def context(self) -> str | None:
        return None

    def end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if not self._number:
            self._link.tell_trace(self._model, self._text())
        elif self.is_taken:
            self._link.tell_stamps(StampsText(self._number, self._stamps, self._attributes))


def _crossing(value: str | int | float | Sequence[str]) -> Attribute:
    if isinstance(value, int):
        return value if -_MOST_INTEGER <= value < _MOST_INTEGER else float(value)
    return value if isinstance(value, str | float) else tuple(value)
