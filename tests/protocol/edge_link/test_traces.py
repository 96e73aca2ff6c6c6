"""Traces over a link: the core decides which requests are traced, and has one trace of each, whatever becomes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
import trio

from actors.tracing.record import RequestTrace
from actors.tracing.settings import TracerSettings
from actors.tracing.tracer import Tracer
from protocol.core import InferenceCore, Respond
from protocol.edge_link.edge_traces import EdgeTrace
from protocol.log.access_record import AccessRecord
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.server_settings import TraceSettings
from tests.protocol.edge_link.links import Link, linked, settled
from tests.protocol.edge_link.scripted_core import ScriptedCore, Submission


@dataclass
class Traced:
    """An edge's link, the core behind it, and the traces that have ended there."""

    link: Link
    core: ScriptedCore
    ended: list[RequestTrace]

    def trace(self, model: str = "m", **context: str) -> EdgeTrace:
        made = EdgeTrace(self.link.core, model, **context)
        made.stamp("RECV", 1)
        return made

    async def infer(self, trace: EdgeTrace, record: AccessRecord | None = None) -> Submission:
        """Answered, and sent to its client."""
        sent = request(trace, record)
        await self.link.core.infer(sent)
        assert sent.trace is not None
        sent.trace.stamp("SEND", 9)
        sent.trace.end()
        sent.trace.end()
        await settled()
        return self.core.submitted[-1]


def request(trace: EdgeTrace, record: AccessRecord | None = None) -> InferenceRequest:
    made = InferenceRequest("m", [Tensor.from_numpy("IN", np.zeros(2, np.float32))])
    made.trace = trace
    if record is not None:
        record.trace, made.trace = trace, record
    return made


@asynccontextmanager
async def tracing(rate: int = 1, count: int = -1, mode: str = "triton") -> AsyncIterator[Traced]:
    ended: list[RequestTrace] = []
    start = TraceSettings(level=("TIMESTAMPS",), rate=rate, count=count, mode=mode, file="trace.json")
    control = Tracer(TracerSettings(start), lambda model: True, ended.append)
    control._finished, finished = trio.open_memory_channel(1000)  # in place of what writes them
    control._look_again()
    core = ScriptedCore()
    with finished:
        async with linked(cast(InferenceCore, core), tracing=control) as link:
            yield Traced(link, core, ended)


def stamps(trace: RequestTrace) -> list[str]:
    return [name for name, _ in trace.stamps]


async def test_one_in_so_many_over_all_edges() -> None:
    async with tracing(rate=3) as one:
        for number in range(9):
            submission = await one.infer(one.trace())
            assert (submission.request.trace is not None) == (number % 3 == 2)
            assert len(one.ended) == (number + 1) // 3
        assert [stamps(each) for each in one.ended] == [["RECV", "SEND"]] * 3


@pytest.mark.parametrize("is_logged", [False, True])
async def test_what_the_core_records_stands_between(is_logged: bool) -> None:
    record = AccessRecord() if is_logged else None
    async with tracing() as one:
        one.core.holds = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.infer, one.trace(), record)
            await settled()
            (submission,) = one.core.submitted
            trace = submission.request.trace
            assert trace is not None
            trace.identify(4, "id")
            trace.stamp("QUEUE_START", 2)
            trace.stamp("COMPUTE_START", 5)
            assert trace.child("n") is not None
            submission.echo()
        assert [stamps(each) for each in one.ended] == [["RECV", "QUEUE_START", "COMPUTE_START", "SEND"]]
        assert (one.ended[0].model_version, one.ended[0].request_id) == (4, "id")
        if record is not None:
            assert (record.version, record.queue_ns) == ("4", 3)


async def test_a_stream() -> None:
    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        for _ in range(2):
            await respond(InferenceResponse(asked.model_name, 1, asked.inputs))
        return False

    async def respond(_: InferenceResponse) -> None:
        trace.stamp("SEND", 9)

    async with tracing() as one:
        one.core.stream = stream
        trace = one.trace()
        await one.link.core.infer_stream(request(trace), respond)
        trace.end()
        await settled()
        assert [stamps(each) for each in one.ended] == [["RECV", "SEND", "SEND"]]


async def test_a_client_that_leaves() -> None:
    """Before the edge has heard that its request is traced, and later."""
    async with tracing() as one:
        one.core.holds = True
        for waits in (False, True):
            trace = one.trace()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(one.link.core.infer, request(trace))
                    if waits:
                        await settled()
                    else:
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            trace.end()
            await settled()
        assert [stamps(each) for each in one.ended] == [["RECV"], ["RECV"]]
        assert len(one.link.server._requests.traces) == 0


async def test_an_edge_that_is_gone() -> None:
    async with tracing() as one:
        one.core.holds = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.link.core.infer, request(one.trace()))
            await settled()
            nursery.cancel_scope.cancel()
            one.link.edge_scope.cancel()
        await settled()
        assert len(one.ended) == 1


async def test_what_has_ended_in_the_edge_counts_too() -> None:
    async with tracing(count=1) as one:
        for _ in range(3):
            one.trace().end()
        await settled()
        assert [stamps(each) for each in one.ended] == [["RECV"]]
        assert (await one.infer(one.trace())).request.trace is None


async def test_a_clients_context() -> None:
    """A request with one is always traced, as what it is a part of."""
    context = f"00-{7:032x}-{8:016x}-01"
    async with tracing(rate=0, mode="opentelemetry") as one:
        await one.infer(one.trace())
        submission = await one.infer(one.trace(traceparent=context, tracestate="a=b"))
        (ended,) = one.ended
        assert submission.request.trace is ended
        assert ended.span_context is not None
        assert (ended.span_context.trace_id, ended.span_context.trace_state) == (7, "a=b")
