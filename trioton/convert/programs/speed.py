"""Speed of a served model: closed loops of single rows, by the load generator of `trioton perf` without a wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from protocol.messages import Tensor
from trioton.convert.choice import PERCENTILES
from trioton.in_process import Models
from trioton.perf.caller import Call, Control, Cycle, Encode, ModelDescription, Part, Payload, Source
from trioton.perf.load import Closed
from trioton.perf.measurement import Ends, Measurement
from trioton.perf.session import open_session
from trioton.perf.target import Target, Wire

_WARM_UP_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class _Rows:
    """Implements `trioton.perf.caller.Data`: requests of one row each."""

    requests: Sequence[Sequence[Tensor]]

    @asynccontextmanager
    async def open(
        self, model: ModelDescription, encode: Encode, control: Control, part: Part
    ) -> AsyncIterator[Source]:
        yield Cycle([Call(encode(Payload(inputs=inputs))) for inputs in self.requests], part)


async def measured_speed(
    models: Models, name: str, requests: Sequence[Sequence[Tensor]], levels: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """What each number of callers has shown in so many seconds.

    Raises:
        RuntimeError: requests have failed.
    """
    ends = Ends(
        warmup_seconds=_WARM_UP_SECONDS,
        least_seconds=seconds,
        most_seconds=seconds,
        slice_seconds=min(0.1, seconds),
    )
    target = Target(wire=Wire.IN_PROCESS, model=name, models=models)
    async with open_session(target, _Rows(requests)) as session:
        return [_told(level, await session.measure(Closed(level), ends)) for level in levels]


def _told(level: int, found: Measurement) -> dict[str, Any]:
    figures = found.figures
    if figures.failed or not figures.succeeded:
        raise RuntimeError(f"with {level} callers {figures.failed} requests failed, and {figures.succeeded} did not")
    return {
        "concurrency": level,
        "rate": found.rate.value,
        "latencies_ms": {each: found.percentile(float(each[1:])) * 1e3 for each in PERCENTILES},
        "count": figures.succeeded,
    }
