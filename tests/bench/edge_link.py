"""What a request of an edge process costs the core's process: `python -m tests.bench.edge_link`.

The core with the benchmark's `add_sub` and a link server in this process, a linked core in another one, without the
edges themselves. That one keeps so many requests in flight: it sends them in one burst, and the next when all are
answered. Figures are of the core's thread, for one request: processor time, the least of many bursts, since whatever
else runs on the machine only adds; and Python calls. `direct` is the core alone, its requests submitted in its own
process. In a worker the model's own `execute` is not counted; in loop it is, and told apart as `model`. Garbage is
looked for as rarely as in a server (`backends.free_memory`). With `--callers=limited` they have a key with a quota,
which is large enough; with `sampled` one in a thousand is traced.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from actors.core.server_core import CoreSettings, ServerCore
from actors.tracing.settings import TracerSettings
from actors.tracing.tracer import Tracer
from backends.free_memory import collect_less
from backends.python.worker.trioton_worker.instance import Instance
from backends.registry import BackendRegistry
from protocol.access.keys import KeyRing
from protocol.access.told_keys import ToldKeys
from protocol.core import InferenceCore, Submitted
from protocol.datatypes import DataType
from protocol.edge_link.edge_traces import EdgeTrace
from protocol.edge_link.generation import Generation
from protocol.edge_link.keys import TellingKeys
from protocol.edge_link.link_server import LinkServer
from protocol.edge_link.linked_core import LinkedCore
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.quotas.accounts import Ledger
from protocol.reactor.drivers import the_poller
from protocol.server_settings import TraceSettings

MODEL = Path(__file__).parent / "models" / "add_sub"
SIZE = 16
IN_FLIGHT = (1, 16, 64)
# The first bursts are not counted.
_WARM_UP = 20
_LONGEST_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request: seconds of the core's thread, and calls of Python functions in it; `model` seconds were the
    model's own `execute`."""

    seconds: float
    calls: float
    model: float


class Burst:
    """Requests that are answered together. Implements `protocol.core.ReplyChannel`."""

    def __init__(
        self, core: InferenceCore, count: int, prepare: Callable[[InferenceRequest], None] = lambda request: None
    ) -> None:
        body = memoryview(bytes(8 * SIZE * count))
        self._core = core
        self._requests = [_request(body[8 * SIZE * index :]) for index in range(count)]
        for request in self._requests:
            prepare(request)
        self._submitted: list[Submitted] = []
        self._ended = trio.Event()
        self._left = count
        self._failure: ServerError | None = None

    async def run(self) -> None:
        core = self._core
        self._submitted += [core.submit(request, self, later=True) for request in self._requests]
        core.flush()
        await self._ended.wait()
        for submitted in self._submitted:
            submitted.end()
        for request in self._requests:
            if request.charge is not None:
                request.charge.end()
            if request.trace is not None:
                request.trace.end()
        if self._failure is not None:
            raise self._failure

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        self._failure = value if isinstance(value, ServerError) else self._failure
        self._left -= 1
        if not self._left:
            self._ended.set()


_TEMPLATE = object()


def _request(body: memoryview) -> InferenceRequest:
    left = Tensor("INPUT0", DataType.FP32, (1, SIZE), body[: 4 * SIZE])
    right = Tensor("INPUT1", DataType.FP32, (1, SIZE), body[4 * SIZE : 8 * SIZE])
    return InferenceRequest("add_sub", [left, right], template=_TEMPLATE)


@contextmanager
def _core(isolation: str) -> Iterator[ServerCore]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(MODEL, Path(folder, "add_sub"))
        config = Path(folder, "add_sub", "config.pbtxt")
        parameter = f'parameters {{ key: "ISOLATION" value {{ string_value: "{isolation}" }} }}\n'
        config.write_text(config.read_text() + parameter)
        settings = CoreSettings((Path(folder),), backend_config={"python": {"allow-in-process": "true"}})
        yield ServerCore(settings, BackendRegistry())


class ModelTime:
    """Seconds of this thread in models' own `execute`, in loop; None are counted in workers."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        compute = Instance._compute

        def timed(instance: Instance, requests: Any) -> Any:
            before = time.thread_time()
            try:
                return compute(instance, requests)
            finally:
                self.seconds += time.thread_time() - before

        Instance._compute = timed  # type: ignore[method-assign, assignment]  # in this process only
        try:
            yield
        finally:
            Instance._compute = compute  # type: ignore[method-assign]  # as it was


class Calls:
    """Counts calls of Python functions in this thread."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.count += 1


async def direct(isolation: str, in_flight: int, bursts: int) -> Cost:
    """The core alone."""
    found = Cost(0.0, 0.0, 0.0)
    model = ModelTime()
    with _core(isolation) as core, model.counting():
        async with trio.open_nursery() as nursery:
            await nursery.start(core.run)
            collect_less()
            times = []
            for _ in range(bursts):
                burst = Burst(core, in_flight)
                model_before, before = model.seconds, time.thread_time()
                await burst.run()
                seconds = time.thread_time() - before
                times.append((seconds / in_flight, (model.seconds - model_before) / in_flight))
            burst, calls = Burst(core, in_flight), Calls()
            sys.setprofile(calls.note)
            await burst.run()
            sys.setprofile(None)
            seconds, in_model = min(times)
            found = Cost(seconds, calls.count / in_flight, in_model)
            core.stop()
    return found


async def linked(isolation: str, in_flight: int, bursts: int, callers: str = "plain") -> Cost:
    """The core with an edge process."""
    found = Cost(0.0, 0.0, 0.0)
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.bench.edge_link", "--edge", str(theirs.fileno()), str(in_flight)]
    command.append(f"--callers={callers}")
    edge = subprocess.Popen(command, pass_fds=[theirs.fileno()])  # noqa: ASYNC220 (nothing else runs yet)
    theirs.close()
    try:
        with _core(isolation) as core:
            async with trio.open_nursery() as nursery:
                await nursery.start(core.run)
                server = LinkServer(core, ours, keys=TellingKeys(_Keys(), Generation()), tracing=await _tracer(nursery))
                await nursery.start(server.run)
                collect_less()
                with trio.fail_after(_LONGEST_SECONDS):
                    found = await _measured(server, in_flight, bursts)
                core.stop()
                nursery.cancel_scope.cancel()
    finally:
        edge.kill()
        edge.wait()
    return found


async def _measured(server: LinkServer, in_flight: int, bursts: int) -> Cost:
    """Looks at the end of each burst of the poller, behind the server's own call there."""
    times: list[tuple[float, float]] = []
    counts: list[int] = []
    calls, model = Calls(), ModelTime()
    ended = trio.Event()
    answered = server.answered

    def look() -> None:
        nonlocal answered
        if server.in_flight or server.answered - answered < in_flight:
            return
        answered = server.answered
        times.append((time.thread_time(), model.seconds))
        counts.append(calls.count)
        if len(times) == bursts:
            sys.setprofile(calls.note)
        elif len(times) == 2 * bursts:
            sys.setprofile(None)
            ended.set()

    with the_poller().calling_last(look), model.counting():
        await ended.wait()
    seconds, in_model = min(
        (after[0] - before[0], after[1] - before[1]) for before, after in pairwise(times[_WARM_UP:bursts])
    )
    each = [after - before for before, after in pairwise(counts[bursts:])]
    return Cost(seconds / in_flight, min(each) / in_flight, in_model / in_flight)


class _Keys:
    """Implements `KeySource`."""

    def __init__(self) -> None:
        quota = "[quotas.q]\nrequests = { limit = 1e12, seconds = 1 }\nconcurrent_requests = 1000\n"
        key = "[keys.k]\nkey = '0123456789abcdef'\nallow = ['inference']\nquota = 'q'\n"
        self.current = KeyRing.parse(quota + key, source="keys.toml")
        self.changed = trio.Event()
        self.ledger = Ledger(trio.current_time)
        self.ledger.adopt(self.current.terms)


async def _tracer(nursery: trio.Nursery) -> Tracer:
    start = TraceSettings(level=("TIMESTAMPS",), rate=1000, file=os.devnull)
    tracer = Tracer(TracerSettings(start), lambda model: True)
    await nursery.start(tracer.run)
    return tracer


async def _prepared(core: LinkedCore, callers: str) -> Callable[[InferenceRequest], None]:
    """What makes a request one of such callers, as the edges do."""
    keys = ToldKeys(lambda: 0, core)
    table = await core.key_table()
    assert table is not None
    keys.take(table)

    def prepare(request: InferenceRequest) -> None:
        if callers == "limited":
            request.charge = keys.ledger.account("k").admit(request.model_name, 8 * SIZE)
        elif callers == "sampled":
            request.trace = trace = EdgeTrace(core, request.model_name)
            for activity in ("HTTP_RECV_START", "HTTP_RECV_END"):
                trace.stamp(activity)

    return prepare


async def _run_edge(control: socket.socket, in_flight: int, callers: str) -> None:
    core = LinkedCore(control)
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        with suppress(ServerError):  # the core has ended
            prepare = await _prepared(core, callers)
            while True:
                await Burst(core, in_flight, prepare).run()


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=500)
    parser.add_argument("--pinned", action="store_true", help="the core on processor 0, the edge on processor 1")
    parser.add_argument("--callers", choices=("plain", "limited", "sampled"), default="plain")
    parser.add_argument("--edge", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    bursts = given.bursts
    if given.edge:
        if len(os.sched_getaffinity(0)) == 1:  # the core is pinned
            os.sched_setaffinity(0, {1})
        descriptor, in_flight = given.edge
        trio.run(_run_edge, socket.socket(fileno=descriptor), in_flight, given.callers)
        return
    if given.pinned:
        os.sched_setaffinity(0, {0})
    say("of the core's process, for a request    µs direct   model   linked   model   calls direct   linked")
    for isolation in ("in_loop", "process"):
        for in_flight in IN_FLIGHT:
            alone = trio.run(functools.partial(direct, isolation, in_flight, bursts))
            with_edge = trio.run(functools.partial(linked, isolation, in_flight, bursts, given.callers))
            say(
                f"{isolation:9}{in_flight:3} in flight{alone.seconds * 1e6:27.1f} {alone.model * 1e6:7.1f}"
                f" {with_edge.seconds * 1e6:8.1f} {with_edge.model * 1e6:7.1f}"
                f"{alone.calls:15.1f} {with_edge.calls:8.1f}"
            )


if __name__ == "__main__":
    main()
