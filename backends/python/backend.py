"""The Python backend: runs a `model.py` in a worker for each model instance, by default a process of its own.

Flow: model instance actor → [backend] → `loaded_model` → `batches` → `link` → worker → back the same way. Source:
Triton's Python backend. Tensors cross to the worker and back on the CPU; what is on a GPU there, the worker copies
(`worker.trioton_worker.device`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

import trio

from backends.interface import (
    Backend,
    BatchResult,
    BatchTiming,
    InstanceDied,
    InstanceSpec,
    ModelSource,
    Responder,
    Started,
)
from backends.python.batches.batches import Batches
from backends.python.batches.portions import BatchTooLarge, input_size, portions, too_large
from backends.python.bls.questions import Questions
from backends.python.environments.call_checks import call_faults
from backends.python.environments.environment import find_environment
from backends.python.environments.program import check_program, may_complete
from backends.python.launcher import WorkerLauncher
from backends.python.loaded_model import LoadedModel, begin
from backends.python.renewal import Renewal
from backends.python.settings import PythonSettings
from backends.python.wire.channel import WorkerGone
from backends.python.wire.frames import BrokenFrame
from backends.python.worker.trioton_worker.frames import COMPLETE
from protocol.core import MemoryUsage
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse
from repository.json_form import from_json_form, to_json_form
from repository.model_config import ModelConfig
from repository.sequence_tensors import hidden_outputs

T = TypeVar("T")

logger = logging.getLogger("trioton.backends.python")


class PythonBackend(Backend):
    """One worker, from `load` to `unload`."""

    # Chooses where its workers run.
    launcher: ClassVar[type[WorkerLauncher]] = WorkerLauncher
    prefers_gpu = True
    can_be_decoupled = True
    can_overlap = True
    takes_shared_tensors = True
    settings_from = ("python",)
    # Those of a Python-based backend (see `based`); else a model has its program among its own files.
    program: ClassVar[Path | None] = None
    bundled_environment: ClassVar[Path | None] = None

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._loaded: LoadedModel | None = None
        self._renewal: Renewal | None = None
        self._takes_sequences = spec.config.sequence_batching is not None
        # A worker that is being replaced, while it finishes what it has.
        self._retiring: LoadedModel | None = None
        self._outputs = frozenset(output.name for output in (*spec.config.output, *hidden_outputs(spec.config)))
        # Why the instance is dead; empty while it is not.
        self._death = ""
        self._has_died = trio.Event()
        self._is_attended = False

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Run the model's `auto_complete_config` in a worker of its own, unless a server's model plainly has none.

        Raises:
            Internal: it failed; the text is the Python exception with its place.
            InvalidArgument: what it returned is no configuration.
        """
        cls._check_file(source)
        # Where there is no server, each is imported, so that what it cannot import is found.
        if source.resources is not None and not await trio.to_thread.run_sync(may_complete, cls._program(source)):
            return source.config
        name = f"{source.name} (auto_complete_config)"
        link = await cls.launcher.of(source, cls.bundled_environment).own_process(name)
        debugger = PythonSettings.of(source).debugger
        head = {**cls._place(source), "config": to_json_form(source.config), "debugger": debugger}
        questions = Questions(link, source)
        try:
            completed = (await begin(source, link, COMPLETE, head, doing="auto_complete_config")).config
        finally:
            await link.close()
            questions.close()
        if completed is None:
            return source.config
        what = f"auto_complete_config of model '{source.name}' returned a wrong configuration"
        return from_json_form(completed, what=what)

    @classmethod
    async def check_model(cls, source: ModelSource) -> None:
        """Read the program, and find the environment that it asks for. Nothing of the model runs."""
        cls._check_file(source)
        await trio.to_thread.run_sync(check_program, cls._program(source), source.name)
        PythonSettings.of(source)
        environment = await trio.to_thread.run_sync(find_environment, source, cls.bundled_environment)
        if environment.hold is not None:
            environment.hold.close()

    @classmethod
    async def model_warnings(cls, source: ModelSource) -> Sequence[str]:
        """Calls of `pb_utils` in the model's file that cannot work."""
        return await trio.to_thread.run_sync(call_faults, cls._program(source))

    async def load(self) -> None:
        """Start the worker and initialize the model, for as long as that takes. Cancelled, it leaves nothing behind.

        Raises:
            Internal: the model failed, or its worker ended; the text says how.
            ServerError: the configuration asks for what cannot be.
        """
        settings = PythonSettings.of(self.spec.source)
        if settings.debugger:
            self.unload_seconds = math.inf
        self._loaded = await self._load()
        renewal = Renewal(settings)
        self._renewal = renewal if renewal.is_wanted else None

    async def _load(self) -> LoadedModel:
        source = self.spec.source
        self._check_file(source)
        launcher = self.launcher.of(source, self.bundled_environment)
        return await LoadedModel.load(self.spec, launcher, self._place(source), self._outputs)

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        """One batch. Cancelled, the worker finishes it, and the next one waits for that.

        Outputs are copies, or views of memory that nobody writes to again.
        """
        return await self._execute(requests, None)

    def begin(
        self,
        requests: Sequence[InferenceRequest],
        done: Callable[[BatchResult | Exception], None],
        free: Callable[[], None] | None = None,
    ) -> BatchResult | Started | None:
        loaded = self._loaded
        if loaded is None or self._death or not loaded.link.is_attended:
            return None
        if self._renewal is None:
            return loaded.batches.begin(requests, done, free)
        has_ended = True  # also where it raises
        try:
            begun = loaded.batches.begin(requests, partial(self._end_batch, loaded, len(requests), done), free)
            has_ended = isinstance(begun, BatchResult)
        finally:
            if has_ended:
                self._count(loaded, len(requests))
        return begun

    def _end_batch(
        self,
        loaded: LoadedModel,
        requests: int,
        done: Callable[[BatchResult | Exception], None],
        result: BatchResult | Exception,
    ) -> None:
        self._count(loaded, requests)
        done(result)

    def _count(self, loaded: LoadedModel, requests: int) -> None:
        """A worker may have had its share of requests."""
        if self._renewal is not None and loaded is self._loaded:
            self._renewal.note_batch(loaded, requests)

    async def execute_overlapping(self, requests: Sequence[InferenceRequest], free: Callable[[], None]) -> BatchResult:
        """`free` is called while a coroutine `execute` goes on, and while requests wait for their response senders."""
        return await self._execute(requests, free)

    async def _execute(self, requests: Sequence[InferenceRequest], free: Callable[[], None] | None) -> BatchResult:
        try:
            return await self._attended(len(requests), lambda batches: batches.run(requests, free))
        except BatchTooLarge:
            return await self._execute_in_portions(requests)

    async def _execute_in_portions(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        """A batch that is more than its worker may have at a time, one part after the other."""
        responses: list[InferenceResponse | ServerError] = []
        timing = BatchTiming(0, 0, 0)
        for portion, error in self._portions(requests):
            part = requests[portion]
            if error is not None:
                responses += [error] * len(part)
                continue
            result = await self._execute(part, None)
            responses += result.responses
            timing = _sum(timing, result.timing)
        return BatchResult(responses, timing)

    def _portions(self, requests: Sequence[InferenceRequest]) -> list[tuple[slice, ServerError | None]]:
        """The portions of a batch that is too large; an error for one that still is."""
        limit = PythonSettings.of(self.spec.source).shm_limit_byte_size
        sequences = self.spec.config.sequence_batching
        must_stay = sequences is not None and sequences.oldest is None  # its places say which sequences they are
        found = [slice(0, len(requests))] if must_stay else portions(requests, limit)
        return [
            (
                part,
                too_large(self.spec.source.name, requests[part], limit) if input_size(requests[part]) > limit else None,
            )
            for part in found
        ]

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        return await self._execute_decoupled(requests, responders, None)

    async def execute_decoupled_overlapping(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder], free: Callable[[], None]
    ) -> BatchTiming:
        """Without sequences it returns at once where there is place for another batch."""
        return await self._execute_decoupled(requests, responders, free if self._takes_sequences else None)

    async def _execute_decoupled(
        self,
        requests: Sequence[InferenceRequest],
        responders: Sequence[Responder],
        free: Callable[[], None] | None,
    ) -> BatchTiming:
        waits = self._takes_sequences  # only then a round's end is known
        try:
            return await self._attended(
                len(requests), lambda batches: batches.run_decoupled(requests, responders, free, waits=waits)
            )
        except BatchTooLarge:
            pass
        timing = BatchTiming(0, 0, 0)
        for portion, error in self._portions(requests):
            if error is None:
                timing = _sum(timing, await self.execute_decoupled(requests[portion], responders[portion]))
            else:
                for responder in responders[portion]:
                    responder.close(error)
        return timing

    async def _attended(self, requests: int, work: Callable[[Batches], Awaitable[T]]) -> T:
        loaded = self._loaded
        if loaded is None or self._death:
            raise InstanceDied(self._death or f"model instance '{self.spec.name}' is not loaded")
        loaded.calls += 1
        try:
            if loaded.link.is_attended:
                return await work(loaded.batches)
            return await loaded.link.attending(partial(work, loaded.batches))
        except (WorkerGone, BrokenFrame) as gone:
            raise await self._died(loaded, str(gone)) from None
        finally:
            loaded.end_call()
            self._count(loaded, requests)

    def cancel(self, request: InferenceRequest) -> None:
        for loaded in (self._loaded, self._retiring):
            if loaded is not None:
                loaded.batches.cancel(request)

    def known_readiness(self) -> bool | None:
        if self._loaded is None or self._death:
            return False
        return True if self._loaded.readiness is None else None

    async def is_ready(self) -> bool:
        """Ask the model, if it defines `is_ready`."""
        known = self.known_readiness()
        if known is not None or self._loaded is None or self._loaded.readiness is None:
            return bool(known)
        return await self._loaded.readiness.check()

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """The resident memory of the worker's process, including what it shares with the server."""
        resident = None if self._loaded is None else self._loaded.link.resident_bytes()
        return () if resident is None else (MemoryUsage("CPU", 0, resident),)

    def arena_bytes(self) -> int:
        return 0 if self._loaded is None else self._loaded.link.arena.byte_size

    async def _died(self, loaded: LoadedModel, problem: str) -> ServerError:
        end = await loaded.link.end_text(problem)
        text = f"model instance '{self.spec.name}' died: its {loaded.link.runner.noun} {end}"
        if loaded is not self._loaded and self._loaded is not None:  # it was being replaced; its successor serves
            return Unavailable(text)
        self._death = text
        self._has_died.set()
        return InstanceDied(text)

    def death_text(self) -> str:
        return self._death

    async def wait_died(self) -> None:
        """While nobody attends, it does so itself."""
        if self._is_attended:
            await self._has_died.wait()
        else:
            await self.attend()

    async def attend(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take all that the worker sends, and replace it when that is due. While nobody does, `execute` attends for
        itself, and what a batch has begun ends with it."""
        if self._loaded is not None:
            self._is_attended = True
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._attend, self._loaded, nursery.cancel_scope)
                    task_status.started()
                    if self._renewal is not None:
                        nursery.start_soon(self._renew, self._renewal, nursery)
            finally:
                self._is_attended = False
        if self._loaded is None:  # unloaded meanwhile
            await trio.sleep_forever()

    async def _attend(
        self, loaded: LoadedModel, serving: trio.CancelScope, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Until it has died, which is the end of the instance unless the worker was being replaced."""
        try:
            with loaded.attendance:
                await loaded.link.attend(task_status=task_status)
        finally:
            loaded.left.set()
        has_died_busy = loaded.link.channel.is_closed and loaded.batches.open.has_any
        if loaded.attendance.cancelled_caught and not has_died_busy:
            return
        if self._loaded is not None:
            loaded.batches.open.fail_open(await self._died(loaded, loaded.link.channel.problem))
        if loaded is self._loaded or self._loaded is None:
            serving.cancel()

    async def _renew(self, renewal: Renewal, nursery: trio.Nursery) -> None:
        """Whenever it is due: load another worker, give it all that comes from then on, and end the old one when it has
        answered what it has."""
        while True:
            await renewal.wait_due()
            logger.info("model instance '%s': its worker is being replaced", self.spec.name)
            try:
                fresh = await self._load()
            except ServerError as error:
                logger.error("model instance '%s': its worker cannot be replaced: %s", self.spec.name, error)
                assert self._loaded is not None
                self._loaded.requests = 0
                renewal.begin_anew()
                continue
            self._retiring, self._loaded = self._loaded, fresh
            renewal.begin_anew()
            try:
                await nursery.start(self._attend, fresh, nursery.cancel_scope)
                await self._retiring.wait_idle()  # type: ignore[union-attr]  # `_loaded` was there
            finally:
                with trio.CancelScope(shield=True):
                    await self._retire()

    async def _retire(self) -> None:
        """End the old worker. Bounded."""
        retiring, self._retiring = self._retiring, None
        if retiring is not None:
            retiring.attendance.cancel()
            await retiring.left.wait()
            await retiring.stop()

    async def unload(self) -> None:
        """Finalize the model within some seconds, or in its own time where it is debugged, then end its process and
        whatever it started."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await loaded.stop()

    @classmethod
    def _program(cls, source: ModelSource) -> Path:
        return (cls.program or source.model_file).absolute()

    @classmethod
    def _check_file(cls, source: ModelSource) -> None:
        path = cls._program(source)
        if path.suffix != ".py":
            raise InvalidArgument(f"Model name must end with '.py'. Model name is \"{path.name}\".")
        if not path.is_file():
            raise Internal(f"Python model file not found in '{path}'")

    @classmethod
    def _place(cls, source: ModelSource) -> dict[str, object]:
        """Absolute paths: the worker may have another working directory."""
        return {
            "path": str(cls._program(source)),
            "directory": str(source.model_directory.absolute()),
            "version_directory": str(source.version_directory.absolute()),
        }


def _sum(one: BatchTiming, other: BatchTiming) -> BatchTiming:
    """The sum of the timings of two batches that ran one after the other."""
    return BatchTiming(
        one.compute_input_ns + other.compute_input_ns,
        one.compute_infer_ns + other.compute_infer_ns,
        one.compute_output_ns + other.compute_output_ns,
    )
