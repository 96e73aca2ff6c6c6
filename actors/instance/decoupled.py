"""Batch runner of a decoupled model: its responses leave by streams, also after their batch has ended.

Flow: scheduler → batch slot → [decoupled runner] → backend → response streams → callers. Owned by the model instance.
A batch is reported when the instance can take the next one, a request when its stream ends. Cancelled, the batch is
reported as ended and Cancelled passes; `close_streams` then ends what is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import trio

from actors.instance.response_stream import ResponseStream
from actors.instance.runner import BatchRunner
from actors.instance.slot import BatchSlot
from actors.mail.messages import BatchDone, Execute, StreamEnded
from actors.metrics.response_statistics import ResponseStatistics
from actors.tracing.stamps import COMPUTE_END, begin_compute, end_compute, tell_batch, traces_of
from backends.interface import BatchTiming
from protocol.errors import ServerError


@dataclass(eq=False, slots=True)
class DecoupledRunner(BatchRunner):
    """As `BatchRunner`, by `Backend.execute_decoupled`. Responses are counted in `responses`; with `is_iterative` the
    error `Rescheduled` ends a round of a request."""

    responses: ResponseStatistics = field(kw_only=True)
    is_iterative: bool = False
    _streams: set[ResponseStream] = field(default_factory=set, init=False)

    async def run(self, slot: BatchSlot, message: Execute, free: Callable[[], None] | None) -> None:
        batch = message.batch
        streams = [ResponseStream(item, self._end_stream, self.responses, self.is_iterative) for item in batch]
        self._streams.update(streams)
        timing: BatchTiming | None = None
        started = trio.current_time()
        begin_compute(traces_of(batch))
        tell_batch(traces_of(batch), self.name, sum(item.batch_size for item in batch))
        watcher = partial(self.notices.cancelled, batch)
        for item in batch:
            item.watcher = watcher
        self.executing += 1
        try:
            requests = [item.request for item in batch]
            if free is not None and self.backend.can_overlap:
                timing = await self.backend.execute_decoupled_overlapping(requests, streams, free)
            else:
                timing = await self.backend.execute_decoupled(requests, streams)
            self.has_worked = True
        except Exception as error:
            _close(streams, self.as_reply(error))
        except BaseException:
            self.is_stopping = True
            raise
        finally:
            self.executing -= 1
            # For the others it has ended with their last response.
            running = [stream.item for stream in streams if stream in self._streams]
            end_compute(traces_of(running), timing, has_answers=False)
            is_alive = self.slot_ended(slot)
            self.report(BatchDone(slot.address, message, batch, None, started, timing, is_alive, self.has_died))

    def close_streams(self, error: ServerError) -> None:
        _close(self._streams, error)

    def _end_stream(self, stream: ResponseStream, error: ServerError | None) -> None:
        stream.item.watcher = None  # it refers to the batch, and would keep all tensors until it is collected
        self._streams.discard(stream)
        trace = stream.item.request.trace
        if trace is not None:
            self.trace(trace.stamp, COMPUTE_END)
        self.report(StreamEnded(stream.item, error, stream.first_response))


def _close(streams: Iterable[ResponseStream], error: ServerError) -> None:
    for stream in list(streams):
        stream.close(error)
