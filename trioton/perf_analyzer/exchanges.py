"""Exchanges of a measurement, for the export of a profile: requests and responses as JSON has them."""

from __future__ import annotations

import time
from typing import Any

from trioton.perf.caller import Payload, Result
from trioton.perf.data.responses import inputs_of, output_of, payload_of
from trioton.perf.data.sequences import Running
from trioton.perf.target import Wire
from trioton.perf_analyzer.profile import Exchange

# What one window holds at most; requests beyond it are measured, but not exported.
MAX_EXCHANGES = 200_000
MAX_BYTES = 256 << 20


class ExchangeLog:
    """The exchanges of windows, each a list of its own.

    Attributes:
        left_out: how many were too many.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        # From the clock of results to the epoch.
        self._offset = time.time_ns() - time.perf_counter_ns()
        self._inputs: dict[int, Any] = {}
        self._current: list[Exchange] = []
        self._size = 0
        self.windows: list[list[Exchange]] = []
        self.left_out = 0

    def take(self, result: Result) -> None:
        """A request has ended."""
        if result.error or result.is_cancelled:
            return
        size = sum(map(len, result.responses))
        if len(self._current) >= MAX_EXCHANGES or self._size + size > MAX_BYTES:
            self.left_out += 1
            return
        self._size += size
        payload = payload_of(result)
        key = result.call.key
        offset = self._offset
        self._current.append(
            Exchange(
                sent=result.planned + offset,
                responses=[each + offset for each in result.times or [result.last]],
                inputs=None if payload is None else self._inputs_of(payload),
                outputs=[output_of(self._wire, data) for data in result.responses],
                sequence_id=key.id if isinstance(key, Running) else 0,
            )
        )

    def end_window(self, keep: int) -> None:
        """Those that come are of the next window; only the last few are kept."""
        self.windows = [*self.windows, self._current][-keep:]
        self._current = []
        self._size = 0

    def now(self) -> int:
        return time.perf_counter_ns() + self._offset

    def _inputs_of(self, payload: Payload) -> Any:
        """Made once for each payload, of which there are few."""
        key = id(payload)
        if key not in self._inputs:
            self._inputs[key] = (payload, inputs_of(payload))  # the payload, so that its id stays its own
        return self._inputs[key][1]
