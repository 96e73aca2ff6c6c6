"""Engine worker as the server sees it: a process with one engine, from its start to its end.

Flow: generations → [engine worker] → link → worker process, and steps back the same way. Owned by the backend; a
cancelled start leaves nothing behind.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from backends.affinity import bound_children
from backends.engines.control import Controlled, WorkerControl
from backends.engines.hang_watch import HangWatch
from backends.engines.settings import STEP_TIMEOUT, EngineSettings
from backends.engines.worker.trioton_engine.engine import EngineInfo, Event, Generation, Stats
from backends.engines.worker.trioton_engine.frames import (
    ABORT,
    STEP,
    SUBMIT,
    BadStep,
    decode_step,
    encode_column,
    encode_submission,
)
from backends.interface import InstanceSpec, ModelSource
from backends.model_log import model_log
from backends.python.environments.environment import Environment, find_environment
from backends.python.loaded_model import begin
from backends.python.settings import PythonSettings
from backends.python.wire.channel import WorkerGone
from backends.python.wire.frames import BrokenFrame, Frame
from backends.python.wire.heads import DoneHead
from backends.python.worker.trioton_worker.frames import INITIALIZE, pack
from backends.python.workers.link import WorkerLink
from backends.python.workers.process import WorkerProcess
from backends.python.workers.readiness import Readiness
from protocol.errors import Internal, InvalidArgument, Unavailable
from repository.model_config import InstanceKind

logger = logging.getLogger("trioton.backends.engines")

MAIN = Path(__file__).parent / "worker" / "main.py"


class _Described(msgspec.Struct):
    """What DONE says of the engine; `stats` has its load now."""

    features: frozenset[str]
    context_length: int
    most_logprobs: int
    sequences: int
    most_adapters: int
    adapters: list[tuple[str, str]]
    stats: tuple[int, int, float, int, int, int, int, int]


class EngineWorker:
    """`stepped` gets what each step has brought; it must not raise. `step_timeout` is after how many seconds without a
    step or an answer that it owes the worker is killed; 0 for never.

    Attributes:
        info: what the engine says of itself.
        stats: its load, as it was told last.
        adapters: the paths of those that it has, by name.
        problem: why the server has killed it; empty where it has not.
    """

    def __init__(
        self, link: WorkerLink, stepped: Callable[[Sequence[Event], Stats], None], step_timeout: float = 0.0
    ) -> None:
        self.link = link
        self.info = EngineInfo()
        self.stats = Stats()
        self.adapters: dict[str, str] = {}
        self.readiness = Readiness(link)
        self.problem = ""
        self._step_timeout = step_timeout
        self._stepped = stepped
        self._control = WorkerControl(link)
        link.handlers[STEP] = self._take_step

    @classmethod
    async def start(
        cls,
        spec: InstanceSpec,
        engine: str,
        settings: EngineSettings,
        stepped: Callable[[Sequence[Event], Stats], None],
    ) -> EngineWorker:
        """Start the process and load the engine, for as long as that takes.

        Raises:
            Internal: the engine cannot be loaded, or its process ended; the text says how.
            ServerError: the configuration asks for what cannot be.
        """
        source = spec.source
        environment = await trio.to_thread.run_sync(find_environment, source, abandon_on_cancel=True)
        link = _launch(spec, environment)
        worker = cls(link, stepped, settings.step_timeout)
        try:
            done = await begin(source, link, INITIALIZE, _load_head(spec, engine, settings), doing="load")
            worker._note_engine(done)
        except BrokenFrame as broken:
            await link.close()
            raise Internal(f"model '{source.name}': its engine's worker is broken: {broken}") from None
        except BaseException:
            await link.close()
            raise
        return worker

    async def attend(
        self, step_owed_for: Callable[[], float], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Take frames until the worker has ended; one that hangs is killed. `step_owed_for` tells for how many seconds
        its present step has lasted, 0 where it has no generation."""
        async with trio.open_nursery() as nursery:
            if self._step_timeout:
                nursery.start_soon(self._end_hung, step_owed_for)
            await self.link.attend(task_status=task_status)
            nursery.cancel_scope.cancel()
        if not self.problem:
            self.problem = self.link.channel.problem

    async def _end_hung(self, step_owed_for: Callable[[], float]) -> None:
        def owed_for() -> float:
            return max(step_owed_for(), self.readiness.owed_for, self._control.owed_for)

        await HangWatch(self._step_timeout, owed_for).wait_hung()
        waited = f"its engine has not ended a step, or not answered, for {self._step_timeout:g} s"
        self.problem = f"{waited} (parameter {STEP_TIMEOUT})"
        logger.error("%s: its worker is killed: %s", self.link.name, self.problem)
        self.link.runner.kill()

    def submit(self, generation: Generation) -> None:
        """Raises WorkerGone."""
        column = encode_column(generation.token_ids)
        head = msgspec.json.encode(encode_submission(generation))
        pixels = [each.pixels for each in generation.images]
        size = sum(map(len, pixels))
        self.link.channel.give(pack(SUBMIT, head, column, body_size=size), pixels, size)

    def abort(self, sequences: Sequence[int]) -> None:
        """End generations; harmless where they have ended, or the worker has."""
        self.link.channel.post(pack(ABORT, b"", encode_column(sequences)))

    async def add_adapter(self, name: str, folder: str) -> None:
        """There is none of this name. Raises as `_ask`."""
        self.adapters = dict((await self._ask("add_adapter", name=name, path=folder)).adapters)

    async def remove_adapter(self, name: str) -> None:
        """No generation uses it. Raises as `_ask`."""
        self.adapters = dict((await self._ask("remove_adapter", name=name)).adapters)

    async def sleep(self, level: int) -> None:
        """It has no generations. Raises as `_ask`."""
        await self._ask("sleep", level=level)

    async def wake(self) -> None:
        """Raises as `_ask`."""
        await self._ask("wake")

    async def reset_prefix_cache(self) -> None:
        """Raises as `_ask`."""
        await self._ask("reset_prefix_cache")

    async def _ask(self, do: str, **about: Any) -> Controlled:
        """Cancelled, it may have been done.

        Raises:
            InvalidArgument: the engine refuses it.
            Unavailable: the worker has ended.
        """
        try:
            answer = await self._control.ask(do, **about)
        except WorkerGone:
            raise Unavailable(f"model instance '{self.link.name}': its engine has ended") from None
        if answer.error:
            raise InvalidArgument(answer.error)
        return answer

    async def stop(self) -> None:
        """Close the engine within some seconds, then end its process; nothing is answered any more."""
        try:
            await self.link.stop()
        finally:
            self._control.end()

    def _note_engine(self, done: DoneHead) -> None:
        try:
            found = msgspec.convert(done.engine, _Described)
        except msgspec.ValidationError as error:
            raise BrokenFrame(f"it describes its engine in a wrong way: {error}") from None
        self.info = EngineInfo(
            found.features, found.context_length, found.most_logprobs, found.sequences, found.most_adapters
        )
        self.stats = Stats(*found.stats)
        self.adapters = dict(found.adapters)

    def _take_step(self, frame: Frame) -> None:
        head: dict[str, Any] = {}
        try:
            if len(frame.head):
                head = msgspec.json.decode(frame.head)
            events, self.stats = decode_step(frame.column.cast("q").tolist(), head)
        except (BadStep, msgspec.DecodeError, AttributeError) as error:
            raise BrokenFrame(f"it sent a step that cannot be read: {error}") from None
        self._stepped(events, self.stats)


def _launch(spec: InstanceSpec, environment: Environment) -> WorkerLink:
    source = spec.source
    log = model_log(source).of_instance(spec.name)
    ours, theirs = socket.socketpair()
    try:
        with theirs, bound_children(spec.cpu_cores):
            runner = WorkerProcess(environment, theirs, log, spec.name, program=MAIN)
    except OSError as error:
        ours.close()
        raise Internal(
            f"model '{source.name}': cannot start the interpreter '{environment.interpreter}': {error}"
        ) from error
    failures = None if source.services is None else source.services.failures
    return WorkerLink(ours, runner, PythonSettings(), log, spec.name, failures)


def _load_head(spec: InstanceSpec, engine: str, settings: EngineSettings) -> dict[str, Any]:
    source: ModelSource = spec.source
    return {
        "engine": engine,
        "paths": [],
        "cpu_cores": sorted(spec.cpu_cores),
        "model": {
            "name": source.name,
            "directory": str(settings.directory),
            "tokenizer": settings.tokenizer,
            "options": dict(settings.options),
            "adapters": list(settings.adapters.items()),
            "context_length": settings.context_length,
            "device": f"GPU.{spec.device_id}" if spec.kind is InstanceKind.GPU else "",
        },
    }
