"""All edge processes of a server: the sockets that they serve, who gets which connection, restarts, and the end."""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import trio

from actors.model.backoff import RestartBackoff
from protocol.access.control import KeySource
from protocol.core import InferenceCore
from protocol.edge_link.generation import Generation
from protocol.edge_link.keys import TellingKeys
from protocol.failures import CallbackFailures
from protocol.gen_ai import GenAi
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.open_connections import Open, OpenConnections
from protocol.quotas.accounts import Ledger
from protocol.reactor.arrivals import HandedOver
from protocol.reactor.last_connections import refuse_more
from protocol.reactor.listening import open_listeners
from protocol.server_settings import TraceControl
from protocol.sync.wakeup import WaitingTasks
from trioton.edge_processes.balance import order
from trioton.edge_processes.edge import EdgeContext, EdgeProcess
from trioton.edge_processes.figures import EdgeFigures
from trioton.edge_processes.messages import FailedCall
from trioton.edge_processes.start import EdgeStart, edge_start
from trioton.edge_processes.tracing import ToldTracing
from trioton.metrics.edges import EdgeReading
from trioton.settings import Address, Settings

logger = logging.getLogger(__name__)

# Not served by edge processes: a scrape should come through whatever becomes of them.
OWN_WORDS = frozenset(("metrics",))
# How long to wait where the system has no descriptor left for another connection.
_NO_DESCRIPTOR_SECONDS = 0.1


class EdgeStartError(Exception):
    """An edge process has ended before it served."""


@dataclass(slots=True, eq=False)
class _Service:
    """One that edge processes serve. `most` is how many connections it may have, over all of them."""

    word: str
    most: int
    listeners: Sequence[trio.SocketListener]
    relayed: HandedOver


@dataclass(slots=True, eq=False)
class _Edge:
    number: int
    figures: EdgeFigures
    process: EdgeProcess | None = None
    backoff: RestartBackoff = field(default_factory=RestartBackoff)


class EdgeProcesses:
    """Those of one server: first `open` each service, then `run`."""

    def __init__(
        self,
        settings: Settings,
        *,
        limits: LimitCounter,
        failures: CallbackFailures,
        connections: OpenConnections,
        memory: RequestMemory,
        core: InferenceCore,
        tracer: TraceControl,
        gen_ai: GenAi | None,
        log_access: Callable[[bytes, int], None],
        note_failed: Callable[[FailedCall], None],
    ) -> None:
        """The last two are as in `EdgeContext`."""
        self._settings = settings
        self._connections = connections
        self._memory = memory
        self._core = core
        self._tracer = tracer
        self._gen_ai = gen_ai
        self._failures = failures
        self._log_access = log_access
        self._note_failed = note_failed
        self._keys: KeySource | None = None
        self.tracing = ToldTracing(tracer, self._tell_traced)
        self._services: dict[str, _Service] = {}
        self._edges = [
            _Edge(number, EdgeFigures(limits, failures, self._ledger))
            for number in range(1, settings.edge_processes + 1)
        ]
        self._changed = WaitingTasks()
        self._generation: Generation | None = None  # while it runs
        self._handed = 0
        self._handed_back: deque[tuple[_Service, socket.socket]] = deque()
        self._is_stopping = False
        self._failure: EdgeStartError | None = None
        self._running = trio.CancelScope()
        self._accepting = trio.CancelScope()

    @property
    def count(self) -> int:
        return len(self._edges)

    def models_changed(self, names: Collection[str] | None) -> None:
        """What edge processes keep of the models that are asked for by these names, or of all, may be wrong from now
        on."""
        if self._generation is None:
            return
        if names is None:
            self._generation.bump()
        else:
            for name in names:
                self._generation.bump_model(name)

    def take_keys(self, keys: KeySource) -> None:
        """Before `run`: the keys of clients, of whose changes `keys_changed` is to be told."""
        self._keys = keys

    def keys_changed(self) -> None:
        """Other keys are in force: no edge process lets anyone in by the ones before from now on."""
        if self._generation is not None:
            self._generation.bump_keys()
        for edge in self._edges:
            if edge.process is not None:
                edge.process.tell_keys()

    def _ledger(self) -> Ledger | None:
        return None if self._keys is None else self._keys.ledger

    def readings(self) -> list[EdgeReading]:
        """For the metrics."""
        return [
            EdgeReading(
                edge.number,
                0 if edge.process is None else edge.process.load.open_count,
                edge.figures.restarts,
                edge.figures.relayed,
                edge.figures.lag(),
            )
            for edge in self._edges
        ]

    async def open(self, word: str, address: Address) -> None:
        """Listen for a service. Raises OSError."""
        http, grpc = self._settings.http_edge(), self._settings.grpc_edge()
        if word == "grpc":
            most, backlog, reuse_port = grpc.max_connections, None, grpc.reuse_port
        else:
            most, backlog = http.connections.max_connections, http.connections.backlog
            reuse_port = http.reuse_port and word in ("http", "openai")
        listeners = await open_listeners(*address, backlog=backlog, reuse_port=reuse_port)
        host, port = listeners[0].socket.getsockname()[:2]
        self._services[word] = _Service(word, most, listeners, HandedOver((host, port)))

    def relayed(self, word: str) -> HandedOver:
        """Where the core's own edge of that service gets its connections."""
        return self._services[word].relayed

    async def wait_serving(self) -> None:
        """Beside `run`: returns when every edge process has begun to serve.

        Raises:
            EdgeStartError: one cannot be started; then `run` has ended, too.
        """
        while not all(edge.process is not None and edge.process.has_served for edge in self._edges):
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()

    async def run(self, leaving: trio.Event, stop: trio.Event) -> None:
        """Serve until `stop` is set, and everything is answered. Clients are sent away from `leaving` on. Cancelled,
        the processes are killed."""
        with self._running, closing(Generation()) as generation:
            self._generation = generation
            self._tell_traced()
            try:
                await self._run(leaving, stop, generation)
            finally:
                self._generation = None

    async def _run(self, leaving: trio.Event, stop: trio.Event, generation: Generation) -> None:
        relayed = {word: each.relayed for word, each in self._services.items()}
        context = EdgeContext(
            self._start_of,
            relayed,
            self._changed,
            self._core,
            self._failures,
            generation,
            None if self._keys is None else TellingKeys(self._keys, generation),
            self.tracing,
            self._gen_ai,
            self._log_access,
            self._note_failed,
            self._hand_back,
        )
        accepting = trio.Event()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as processes:
                for edge in self._edges:
                    processes.start_soon(self._keep, edge, context)
                nursery.start_soon(self._accept_all, accepting)
                nursery.start_soon(self._send_away, leaving)
                await stop.wait()
                await refuse_more([each for service in self._services.values() for each in service.listeners])
                self._accepting.cancel()
                await accepting.wait()
                self._is_stopping = True
                for edge in self._edges:
                    if edge.process is not None:
                        edge.process.stop()
            nursery.cancel_scope.cancel()

    # Connections.

    async def _accept_all(self, ended: trio.Event) -> None:
        with self._accepting:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hand_again)
                for service in self._services.values():
                    nursery.start_soon(self._count, service)
                    for listener in service.listeners:
                        nursery.start_soon(self._accept, service, listener)
        ended.set()

    async def _count(self, service: _Service) -> None:
        with self._connections.of(service.word, partial(self._open, service.word)):
            await trio.sleep_forever()

    def _open(self, word: str) -> Open:
        found = [edge for edge in self._edges if edge.process is not None]
        return Open(
            sum(edge.process.load.open.get(word, 0) for edge in found if edge.process is not None),
            sum(edge.figures.streams.get(word, 0) for edge in found),
        )

    async def _accept(self, service: _Service, listener: trio.SocketListener) -> None:
        """One connection in each turn of the loop: however many come, others get theirs in between."""
        async with listener:
            while True:
                while not self._takers():
                    await self._changed.wait()
                try:
                    accepted, _ = await listener.socket.accept()
                except OSError as error:
                    logger.warning("a connection cannot be accepted: %s", error.strerror)
                    await trio.sleep(_NO_DESCRIPTOR_SECONDS)
                    continue
                with socket.socket(fileno=accepted.detach()) as connection:
                    while not self._hand_over(service, connection):
                        await self._changed.wait()

    def _hand_back(self, word: str, connection: socket.socket) -> None:
        if self._accepting.cancel_called:
            connection.close()
            return
        self._handed_back.append((self._services[word], connection))
        self._changed.wake_all()

    async def _hand_again(self) -> None:
        """Those that were handed back."""
        waiting = self._handed_back
        try:
            while True:
                while waiting and self._hand_over(*waiting[0]):
                    waiting.popleft()[1].close()
                await self._changed.wait()
        finally:
            while waiting:
                waiting.popleft()[1].close()

    def _takers(self) -> list[EdgeProcess]:
        by_load = {edge.process.load: edge.process for edge in self._edges if edge.process is not None}
        return [by_load[load] for load in order(by_load)]

    def _hand_over(self, service: _Service, connection: socket.socket) -> bool:
        is_too_many = self._open(service.word).connections >= service.most
        for process in self._takers():
            if process.hand_over(service.word, connection, self._handed + 1, is_too_many=is_too_many):
                self._handed += 1
                return True
        return False

    async def _send_away(self, leaving: trio.Event) -> None:
        await leaving.wait()
        for edge in self._edges:
            if edge.process is not None:
                edge.process.leave()

    def _tell_traced(self) -> None:
        if self._generation is not None:
            self._generation.set_traced(self._tracer.is_sampling, follows_context=self._tracer.follows_context)

    # Processes.

    def _start_of(self, number: int) -> EdgeStart:
        addresses: Mapping[str, Address] = {word: each.relayed.address for word, each in self._services.items()}
        return edge_start(self._settings, number, addresses, self._memory.limit // (2 * self.count))

    async def _keep(self, edge: _Edge, context: EdgeContext) -> None:
        """Start it, and again when it has died, until the server stops."""
        is_first = True
        while True:
            born = trio.current_time()
            edge.process = process = EdgeProcess(edge.number, context, edge.figures)
            try:
                code: int | str = await process.run()
            except OSError as error:
                code = str(error)
            edge.process = None
            edge.figures.note_end()
            if self._is_stopping:
                return
            if is_first and not process.has_served:
                text = f"edge process {edge.number} has ended before it served: {_ending(code)}"
                self._failure = self._failure or EdgeStartError(text)
                self._running.cancel()
                self._changed.wake_all()
                return
            is_first = False
            delay = edge.backoff.delay(now=trio.current_time(), born=born, has_worked=process.has_served)
            logger.error(
                "edge process %d has ended (%s): its connections are lost, and it is started again%s",
                *(edge.number, _ending(code), f" in {delay:g} s" if delay else ""),
            )
            edge.figures.restarts += 1
            await trio.sleep(delay)


def _ending(code: int | str) -> str:
    if isinstance(code, str):
        return code
    return f"signal {-code}" if code < 0 else f"exit code {code}"
