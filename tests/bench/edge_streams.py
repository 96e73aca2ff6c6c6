"""What a token of an edge process costs the core's process: `python -m tests.bench.edge_streams`.

In this process stands what an engine's worker wakes: at each step all streams get a response of a few letters and their
count, in the poller's callback. The edge is another process, which takes each at once and gives credits for them.
Figures are of this thread, for one response: processor time, the least of many rounds, since whatever else runs on the
machine only adds; and Python calls. `alone` the responses are taken in this process; what they cost then, making
them included, is the stand-in's.
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import cast

import trio

from protocol.core import InferenceCore, Respond, RespondsAtOnce
from protocol.datatypes import DataType
from protocol.edge_link.link_server import LinkServer
from protocol.edge_link.linked_core import LinkedCore
from protocol.edge_link.records import WINDOW_RESPONSES
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.reactor.drivers import the_poller
from tests.bench.edge_link import Calls, Cost

STREAMS = (1, 64)
# Of a round: so many responses of a stream are told in one credit.
STEPS = WINDOW_RESPONSES // 2
_WARM_UP = 10
_LONGEST_SECONDS = 120

_TEXT, _COUNT, _ONE = b"\5\0\0\0 word", (1).to_bytes(4, "little"), (1,)


def token() -> InferenceResponse:
    """As an engine answers."""
    outputs = [
        Tensor("text_output", DataType.BYTES, _ONE, _TEXT),
        Tensor("num_output_tokens", DataType.UINT32, _ONE, _COUNT),
    ]
    return InferenceResponse("m", 1, outputs, "r", is_final=False)


class Taker(RespondsAtOnce):
    """Takes all."""

    def respond_at_once(self, response: InferenceResponse) -> bool:
        return True

    async def __call__(self, response: InferenceResponse) -> None:
        pass


class Engine:
    """Stands in for a core with an engine that generates for so many streams, once all are there. A round of steps ends
    when nothing of it is on the way any more."""

    def __init__(self, streams: int, rounds: int) -> None:
        self.costs: list[tuple[float, int]] = []
        self.ended = trio.Event()
        self._streams = streams
        self._rounds = rounds
        self._receivers: list[RespondsAtOnce] = []
        self._given = 0
        self._calls = Calls()
        self._ours, self._theirs = socket.socketpair()

    def flush(self) -> None:
        """As `InferenceCore.flush`."""

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        assert isinstance(respond, RespondsAtOnce)
        self._receivers.append(respond)
        if len(self._receivers) == self._streams:
            self._next()
        await trio.sleep_forever()
        raise AssertionError

    async def run(self) -> None:
        poller = the_poller()
        poller.add(self._ours, self._step, lambda error: None)
        try:
            with poller.calling_last(self._look):
                await self.ended.wait()
        finally:
            sys.setprofile(None)
            poller.remove(self._ours)
            self._ours.close()
            self._theirs.close()

    def _next(self) -> None:
        """The next round, or step of it."""
        self._theirs.send(b".")

    def _step(self) -> None:
        self._ours.recv(1)
        self._given += 1
        for receiver in self._receivers:
            assert receiver.respond_at_once(token())

    def _look(self) -> None:
        if self._given % STEPS or not self._given:
            if self._given:
                self._next()
            return
        if any(getattr(each, "_responses_left", WINDOW_RESPONSES) < WINDOW_RESPONSES for each in self._receivers):
            return
        self._given = 0
        self.costs.append((time.thread_time(), self._calls.count))
        if len(self.costs) == self._rounds:
            sys.setprofile(self._calls.note)
        if len(self.costs) == 2 * self._rounds:
            self.ended.set()
        else:
            self._next()

    def cost(self) -> Cost:
        each = STEPS * self._streams
        timed = [time for time, _ in self.costs[_WARM_UP : self._rounds]]
        counted = [count for _, count in self.costs[self._rounds :]]
        return Cost(_least(timed) / each, _least(counted) / each, 0.0)


def _least(sums: Sequence[float]) -> float:
    return min(after - before for before, after in pairwise(sums))


async def _measured(streams: int, rounds: int, ask: Callable[[Engine, trio.Nursery], Awaitable[None]]) -> Cost:
    engine = Engine(streams, rounds)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        with trio.fail_after(_LONGEST_SECONDS):
            await ask(engine, nursery)
            await engine.ended.wait()
        nursery.cancel_scope.cancel()
    return engine.cost()


async def alone(streams: int, rounds: int) -> Cost:
    """Without a link."""

    async def ask(engine: Engine, nursery: trio.Nursery) -> None:
        for _ in range(streams):
            nursery.start_soon(engine.infer_stream, InferenceRequest("m", []), Taker())

    return await _measured(streams, rounds, ask)


async def linked(streams: int, rounds: int) -> Cost:
    """With an edge process."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.bench.edge_streams", "--edge", str(theirs.fileno()), str(streams)]
    edge = subprocess.Popen(command, pass_fds=[theirs.fileno()])  # noqa: ASYNC220 (nothing else runs yet)
    theirs.close()

    async def ask(engine: Engine, nursery: trio.Nursery) -> None:
        await nursery.start(LinkServer(cast(InferenceCore, engine), ours).run)

    try:
        return await _measured(streams, rounds, ask)
    finally:
        edge.kill()
        edge.wait()


async def _run_edge(control: socket.socket, streams: int) -> None:
    core = LinkedCore(control)

    async def ask() -> None:
        with suppress(ServerError):  # the core has ended
            await core.infer_stream(InferenceRequest("m", [], id="r"), Taker())

    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        for _ in range(streams):
            nursery.start_soon(ask)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--pinned", action="store_true", help="the core on processor 0, the edge on processor 1")
    parser.add_argument("--edge", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.edge:
        if len(os.sched_getaffinity(0)) == 1:  # the core is pinned
            os.sched_setaffinity(0, {1})
        descriptor, streams = given.edge
        trio.run(_run_edge, socket.socket(fileno=descriptor), streams)
        return
    if given.pinned:
        os.sched_setaffinity(0, {0})
    say("of the core's process, for a response    µs alone   linked   calls alone   linked")
    for streams in STREAMS:
        found = [trio.run(functools.partial(run, streams, given.rounds)) for run in (alone, linked)]
        seconds, calls = [each.seconds * 1e6 for each in found], [each.calls for each in found]
        say(f"{streams:3} streams{seconds[0]:38.2f} {seconds[1]:8.2f}{calls[0]:14.1f} {calls[1]:8.1f}")


if __name__ == "__main__":
    main()
