"""Sender: the caller of one target, its source of data, and the generator over both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias

import trio

from trioton.perf.caller import Control, Data, ModelDescription, Part, TargetError
from trioton.perf.clock import Clock, SystemClock
from trioton.perf.controls import GrpcControl, HttpControl, InProcessControl, peer_of
from trioton.perf.generator import LocalGenerator
from trioton.perf.target import Target, Wire
from trioton.perf.wires.grpc import GrpcCaller, StreamLink, UnaryLink
from trioton.perf.wires.http import HttpCaller
from trioton.perf.wires.http_requests import is_streaming
from trioton.perf.wires.in_process import InProcessCaller

_Caller: TypeAlias = HttpCaller | GrpcCaller | InProcessCaller


def control_of(target: Target) -> Control:
    """Raises TargetError: the target cannot be asked at all."""
    if target.wire is Wire.IN_PROCESS:
        if target.models is None:
            raise TargetError("in process a target needs the models of a server")
        return InProcessControl(target, target.models)
    peer = peer_of(target)
    return GrpcControl(target, peer) if target.wire in (Wire.GRPC, Wire.STREAM) else HttpControl(target, peer)


@asynccontextmanager
async def open_sender(
    target: Target,
    description: ModelDescription,
    data: Data,
    control: Control,
    part: Part = Part(),  # noqa: B008 (frozen)
    clock: Clock | None = None,
) -> AsyncIterator[LocalGenerator]:
    """While the block lasts; connections are made as they are needed, and closed at its end.

    Raises:
        DataError: there is no data for what the model wants.
        TargetError: the server refuses what the data need.
    """
    clock = clock or SystemClock()
    with unwrapped():
        async with trio.open_nursery() as nursery:
            caller = _caller(target, description, nursery, clock)
            nursery.start_soon(caller.run)
            try:
                async with data.open(description, caller.encode, control, part) as source:
                    yield LocalGenerator(caller, source, clock, part)
            finally:
                caller.close()
                nursery.cancel_scope.cancel()


@contextmanager
def unwrapped() -> Iterator[None]:
    """An error that is the only one of its group is raised as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


def _caller(target: Target, description: ModelDescription, nursery: trio.Nursery, clock: Clock) -> _Caller:
    is_decoupled = description.is_decoupled
    if target.wire is Wire.IN_PROCESS:
        if target.models is None:
            raise TargetError("in process a target needs the models of a server")
        return InProcessCaller(target, target.models, nursery, clock, is_decoupled=is_decoupled)
    peer = peer_of(target)
    if target.wire in (Wire.GRPC, Wire.STREAM):
        link = StreamLink if target.wire is Wire.STREAM else UnaryLink
        return GrpcCaller(target, peer, nursery, clock, link, is_decoupled=is_decoupled)
    streaming = is_streaming(target.wire, is_decoupled=is_decoupled)
    return HttpCaller(target, peer, nursery, clock, is_streaming=streaming)
