"""Sessions: connections to a target over which any number of loads are measured one after the other.

    target = Target(wire=Wire.GRPC, address="localhost:8001", model="resnet")
    async with open_session(target, data) as session:
        for concurrency in (1, 2, 4):
            found = await session.measure(Closed(concurrency))
            print(found.rate, found.percentiles[99.0], found.server.mean_batch)

`measure` is the short way to one. `IN_PROCESS` targets run in the Trio loop of the models.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from trioton.perf.caller import Control, Data, ModelDescription, Result
from trioton.perf.figures import Figures
from trioton.perf.load import Load
from trioton.perf.measurement import Ends, Measurement
from trioton.perf.target import Target

DEFAULT_ENDS = Ends()

Observe: TypeAlias = Callable[[Result], None]
"""Called with every result of the measurement, its warm-up left out; in this process only."""
Progress: TypeAlias = Callable[[Load, Sequence[Figures]], None]
"""Called after each slice with all that there are, none while it warms up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """What a request must keep to count as good, in seconds; None for what does not matter.

    Attributes:
        first: to the first response (time to first token).
        gap: the mean time between responses.
        latency: to the last response.
    """

    first: float | None = None
    gap: float | None = None
    latency: float | None = None


class Session(Protocol):
    """An open target. One load at a time.

    Attributes:
        description: of the model.
        control: to ask the target beside its load.
    """

    description: ModelDescription
    control: Control

    async def measure(
        self, load: Load, ends: Ends = DEFAULT_ENDS, *, observe: Observe | None = None, progress: Progress | None = None
    ) -> Measurement:
        """Offer a load until the figures are good enough. Requests in flight at the end are waited for, not counted.

        Raises:
            TargetError: the target is gone.
        """
        ...


@asynccontextmanager
async def open_session(
    target: Target, data: Data, *, senders: int = 1, goodput: Goodput | None = None
) -> AsyncIterator[Session]:
    """Connect; with `senders` above 1 by so many processes of their own, each with a part of the load.

    Raises:
        TargetError: the target does not answer, or has no such model.
        DataError: there is no data for what the model wants.
    """
    raise NotImplementedError
    yield


async def measure(
    target: Target,
    load: Load,
    data: Data,
    ends: Ends = DEFAULT_ENDS,
    *,
    senders: int = 1,
    observe: Observe | None = None,
) -> Measurement:
    """Measure one load with connections of its own. Raises as `open_session` and `Session.measure`."""
    async with open_session(target, data, senders=senders) as session:
        return await session.measure(load, ends, observe=observe)
