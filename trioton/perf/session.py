"""Sessions: connections to a target over which any number of loads are measured one after the other.

    target = Target(wire=Wire.GRPC, address="localhost:8001", model="resnet")
    async with open_session(target, data) as session:
        for concurrency in (1, 2, 4):
            found = await session.measure(Closed(concurrency))
            print(found.rate, found.percentiles[99.0], found.server.mean_batch)

`measure` is the short way to one. `IN_PROCESS` targets run in the Trio loop of the models.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from trioton.perf.caller import Control, Data, ModelDescription, Result
from trioton.perf.data.model_data import ModelData
from trioton.perf.data.payloads import Form
from trioton.perf.figures import Figures, joined
from trioton.perf.generator import Generator, Offer
from trioton.perf.limits import generator_limits
from trioton.perf.load import Goodput, Load
from trioton.perf.measurement import Ends, Measurement, is_over, measured
from trioton.perf.sender import control_of, open_sender
from trioton.perf.senders import open_senders
from trioton.perf.server_side import server_figures, snapshot
from trioton.perf.target import Target, Wire

DEFAULT_ENDS = Ends()
# What is sent by these wires; by all others it is tensors.
_FORMS = {Wire.GENERATE: Form.GENERATE, Wire.OPENAI: Form.OPENAI}

Observe: TypeAlias = Callable[[Result], None]
"""Called with every result of the measurement, its warm-up left out; in this process only."""
Progress: TypeAlias = Callable[[Load, Sequence[Figures]], None]
"""Called after each slice with all that there are, none while it warms up."""


class Session:
    """An open target, made by `open_session`. One load at a time.

    Attributes:
        target: as given.
        description: of the model.
        control: to ask the target beside its load.
    """

    def __init__(
        self,
        target: Target,
        description: ModelDescription,
        control: Control,
        generator: Generator,
        senders: int,
        goodput: Goodput | None,
    ) -> None:
        self.target, self.description, self.control = target, description, control
        self._generator, self._senders, self._goodput = generator, senders, goodput

    async def measure(
        self,
        load: Load,
        ends: Ends = DEFAULT_ENDS,
        *,
        observe: Observe | None = None,
        progress: Progress | None = None,
    ) -> Measurement:
        """Offer a load until the figures are good enough. Requests in flight at the end are waited for, not counted.

        Raises:
            TargetError: a sender has ended.
        """
        warmup = math.ceil(ends.warmup_seconds / ends.slice_seconds)
        offer = Offer(
            load=load,
            slice_seconds=ends.slice_seconds,
            warmup_slices=warmup,
            requests=ends.requests,
            goodput=self._goodput,
        )
        slices: list[Figures] = []
        async with self._generator.offer(offer, observe) as received:
            for _ in range(warmup):
                await received.receive()
                if progress is not None:
                    progress(load, ())
            started_at = time.time()
            before = await snapshot(self.control, self.description)
            async for figures in received:
                slices.append(figures)
                if progress is not None:
                    progress(load, slices)
                if is_over(slices, ends):
                    break
            after = await snapshot(self.control, self.description)
        has_wire = self.target.wire is not Wire.IN_PROCESS
        return measured(
            load,
            slices,
            ends,
            server=server_figures(before, after, self.description.name),
            limits=generator_limits(load, joined(slices), self._senders, has_wire=has_wire),
            started_at=started_at,
        )


@asynccontextmanager
async def open_session(
    target: Target, data: Data | None = None, *, senders: int = 1, goodput: Goodput | None = None
) -> AsyncIterator[Session]:
    """Connect; with `senders` above 1 by so many processes of their own, each with a part of the load. Without `data`
    its inputs are random, as `trioton.perf.data.ModelData` makes them.

    Raises:
        TargetError: the target does not answer, or has no such model.
        DataError: there is no data for what the model wants.
    """
    control = control_of(target)
    description = await control.describe()
    given = data or ModelData(form=_FORMS.get(target.wire, Form.TENSORS))
    opened: AbstractAsyncContextManager[Generator]
    if senders == 1:
        opened = open_sender(target, description, given, control)
    else:
        opened = open_senders(target, description, given, control, senders)
    async with opened as generator:
        yield Session(target, description, control, generator, senders, goodput)


async def measure(
    target: Target,
    load: Load,
    data: Data | None = None,
    ends: Ends = DEFAULT_ENDS,
    *,
    senders: int = 1,
    observe: Observe | None = None,
) -> Measurement:
    """Measure one load with connections of its own. Raises as `open_session` and `Session.measure`."""
    async with open_session(target, data, senders=senders) as session:
        return await session.measure(load, ends, observe=observe)
