"""One edge process, as the core's process sees it: started, watched, and ended."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import trio

from protocol.core import InferenceCore
from protocol.edge_link.generation import Generation
from protocol.edge_link.keys import TellingKeys
from protocol.edge_link.link_server import LinkServer
from protocol.failures import CallbackFailures
from protocol.gen_ai import GenAi
from protocol.reactor.arrivals import HandedOver
from protocol.server_settings import TraceControl
from protocol.sync.wakeup import WaitingTasks
from trioton.bound import bound_command
from trioton.edge_processes.balance import EdgeLoad
from trioton.edge_processes.channel import Channel, ChannelFull, ChannelLost, channel_pair
from trioton.edge_processes.figures import EdgeFigures
from trioton.edge_processes.messages import (
    AccessLines,
    Connect,
    FailedCall,
    Figures,
    KeysChanged,
    KeyUse,
    Leave,
    LogLine,
    Ping,
    Progress,
    Ready,
    Stop,
    ToCore,
    ToEdge,
    Upstream,
)
from trioton.edge_processes.start import IGNORED_SIGNALS, EdgeStart
from trioton.module_path import module_path

logger = logging.getLogger(__name__)

MODULE = "trioton.edge_processes"
CHECK_SECONDS = 1.0
# Checks in a row without an answer after which it is killed, and before it has begun to serve at all.
STUCK_AFTER = 10
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class EdgeContext:
    """What all edge processes share. `relayed` are the core's own edges by their words, `changed` is told when there is
    an edge that may take connections. `generation` is moved whenever what edges keep of the models, or of the `keys` of
    clients, may be wrong; `tracing` samples their requests, and `gen_ai` records calls of generative models, if they
    are observed. `log_access` takes lines of the access log, and how many were lost before them; `note_failed` is told
    of failed requests. `hand_back` takes connections, with the words of their services, that were handed to an edge
    which has ended before it received them."""

    start: Callable[[int], EdgeStart]
    relayed: Mapping[str, HandedOver]
    changed: WaitingTasks
    core: InferenceCore
    failures: CallbackFailures
    generation: Generation
    keys: TellingKeys | None
    tracing: TraceControl
    gen_ai: GenAi | None
    log_access: Callable[[bytes, int], None]
    note_failed: Callable[[FailedCall], None]
    hand_back: Callable[[str, socket.socket], None]


class EdgeProcess:
    """One life of the edge with that number. `run` owns the process.

    Attributes:
        load: how busy it is.
        has_served: it has been ready.
    """

    def __init__(self, number: int, context: EdgeContext, figures: EdgeFigures) -> None:
        self.load = EdgeLoad()
        self.has_served = False
        self._number = number
        self._context = context
        self._figures = figures
        self._channel: Channel[ToEdge, ToCore] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._ready = trio.Event()

    async def run(self) -> int:
        """Until the process has ended; answers its exit code. Cancelled, it is killed. Raises OSError if it cannot be
        started."""
        context = self._context
        own, its = channel_pair()
        link, its_link = socket.socketpair()
        self._channel = Channel(own, ToCore)
        its_end: Channel[ToCore, ToEdge] = Channel(its, ToEdge)
        with its_link:
            try:
                self._process = process = self._spawn(its, its_link)
            except BaseException:
                its_end.close()
                self._channel.close()
                link.close()
                raise
        name = f"edge {self._number}"
        served = LinkServer(
            *(context.core, link),
            generation=context.generation,
            keys=context.keys,
            tracing=context.tracing,
            gen_ai=context.gen_ai,
            failures=context.failures,
            name=name,
        )
        try:
            with suppress(ChannelLost):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._channel.write)
                    nursery.start_soon(self._check)
                    nursery.start_soon(self._take_back, process, its_end)
                    nursery.start_soon(self._serve_link, served)
                    try:
                        await self._receive(self._channel)
                    finally:
                        nursery.cancel_scope.cancel()
        except* ChannelLost:
            pass
        finally:
            self.load.is_ready = False
            its_end.close()
            self._channel.close()
            with trio.CancelScope(shield=True):
                await self._reap(process)
        return process.returncode

    def hand_over(self, word: str, accepted: socket.socket, number: int, *, is_too_many: bool) -> bool:
        """Pass a connection on, which stays open here; False where it cannot take it now."""
        if self._channel is None:
            return False
        try:
            if not self._channel.try_send(Connect(word, is_too_many), accepted):
                return False
        except ChannelLost:
            return False
        self.load.note_handed(word, number, is_too_many=is_too_many)
        return True

    def leave(self) -> None:
        self._tell(Leave())

    def stop(self) -> None:
        """Have it end once it has answered everything; `run` returns then."""
        self._is_stopping = True
        self._tell(Stop())

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)

    def _tell(self, message: ToEdge) -> None:
        if self._channel is not None:
            try:
                self._channel.send(message)
            except ChannelFull:
                self.kill()

    def tell_keys(self) -> None:
        """Others are in force."""
        self._tell(KeysChanged())

    async def _take_back(self, process: subprocess.Popen[bytes], its_end: Channel[ToCore, ToEdge]) -> None:
        """Once it has ended, have others take the connections that it was handed and has not received: its end is kept
        open for that. With that closed, the channel ends."""
        descriptor = os.pidfd_open(process.pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        self.load.is_ready = False
        with suppress(ChannelLost):
            while (found := its_end.receive_at_once()) is not None:
                message, passed = found
                if isinstance(message, Connect) and passed is not None:
                    self._context.hand_back(message.word, passed)
                elif passed is not None:
                    passed.close()
        its_end.close()

    async def _serve_link(self, served: LinkServer) -> None:
        await served.run()
        if served.problem:
            logger.error("edge process %d is killed: %s", self._number, served.problem)
            self.kill()

    def _spawn(self, its: socket.socket, its_link: socket.socket) -> subprocess.Popen[bytes]:
        """Some milliseconds of the loop; by its thread, with which the process ends, and whose mask it inherits, so
        that signals wait until it ignores them."""
        command = [sys.executable, "-m", MODULE, str(self._number), str(its.fileno()), str(its_link.fileno())]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        try:
            process = subprocess.Popen(
                bound_command(command),
                stdin=subprocess.PIPE,
                pass_fds=(its.fileno(), its_link.fileno()),
                env={**os.environ, "PYTHONPATH": module_path()},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdin is not None
        with process.stdin as stdin, suppress(BrokenPipeError):
            stdin.write(pickle.dumps(self._context.start(self._number)))
        return process

    async def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """It has closed its end, so it is ending, or it is not to go on."""
        if self._is_stopping:
            with trio.move_on_after(1.0):
                await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        self.kill()
        await trio.to_thread.run_sync(process.wait)

    async def _check(self) -> None:
        """Kill it when it does not answer any more. Counted in checks, so that the time in which this process itself
        was held does not count."""
        with trio.move_on_after(START_SECONDS):
            await self._ready.wait()
        assert self._channel is not None
        while self._ready.is_set():
            with suppress(ChannelLost):
                self._channel.try_send(Ping())
            self.load.unanswered += 1
            if self.load.unanswered > STUCK_AFTER:
                break
            await trio.sleep(CHECK_SECONDS)
        logger.error("edge process %d does not answer, and is killed", self._number)
        self.kill()

    async def _receive(self, channel: Channel[ToEdge, ToCore]) -> None:
        while True:
            message, passed = await channel.receive()
            match message:
                case Progress(taken, ended, lost):
                    self.load.note_progress(taken, ended)
                    if lost:
                        self._note_lost(lost)
                    self._context.changed.wake_all()
                case Upstream(word, client) if passed is not None and word in self._context.relayed:
                    self._context.relayed[word].put(passed, client)
                    passed = None
                case Figures():
                    self._figures.add(message)
                    if self.load.unanswered or self.load.is_full:
                        self.load.unanswered = 0
                        self.load.is_full = False
                        self._context.changed.wake_all()
                case LogLine():
                    self._log(message)
                case AccessLines(data, lost):
                    self._context.log_access(data, lost)
                case FailedCall():
                    self._context.note_failed(message)
                case KeyUse():
                    self._figures.add_use(message)
                case Ready():
                    self.load.is_ready = self.has_served = True
                    self.load.unanswered = 0
                    self._ready.set()
                    self._context.changed.wake_all()
            if passed is not None:
                passed.close()

    def _note_lost(self, count: int) -> None:
        """It gets no more until its next answer to a check: others wait to be accepted."""
        self.load.is_full = True
        logger.warning(
            "edge process %d has no descriptor left, clients are cut off: %d; raise the limit (ulimit -n)",
            *(self._number, count),
        )

    def _log(self, line: LogLine) -> None:
        """What is of a request is found by its id, and says the same wherever it was answered."""
        whose = "" if line.tags else f"edge {self._number}: "
        lost = f" ({line.lost} lines before it were lost)" if line.lost else ""
        logging.getLogger(line.logger).log(line.level, "%s%s%s", whose, line.text, lost, extra={"tags": line.tags})
