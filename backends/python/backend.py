"""The Python backend: a model instance is a `model.py` in a worker process of its own.

Flow: model instance actor → [backend] → `batches` → `link` → worker process → back the same way.
Source: Triton's Python backend. Tensors are on the CPU in the worker, also for an instance of KIND_GPU: its kind and
device id reach the model as arguments of `initialize`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import trio

from backends.interface import Backend, BatchResult, BatchTiming, InstanceDied, InstanceSpec, ModelSource, Responder
from backends.python.batches import Batches
from backends.python.bls import BlsCalls
from backends.python.channel import WorkerGone
from backends.python.environment import find_environment
from backends.python.heads import DoneHead
from backends.python.link import WorkerFailed, WorkerLink
from backends.python.questions import Questions
from backends.python.readiness import Readiness
from backends.python.settings import PythonSettings
from backends.python.wire import BrokenFrame
from backends.python.worker.trioton_worker.frames import COMPLETE, INITIALIZE
from protocol.errors import Internal, InvalidArgument
from protocol.messages import InferenceRequest
from repository.json_form import from_json_form, to_json_form
from repository.model_config import ModelConfig
from repository.sequence_tensors import hidden_outputs

T = TypeVar("T")


class PythonBackend(Backend):
    """One worker process, from `load` to `unload`."""

    # Starts a worker.
    link_type: type[WorkerLink] = WorkerLink
    prefers_gpu = True
    can_be_decoupled = True
    can_overlap = True

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._link: WorkerLink | None = None
        self._batches: Batches | None = None
        self._questions: Questions | None = None
        self._readiness: Readiness | None = None
        self._outputs = frozenset(output.name for output in (*spec.config.output, *hidden_outputs(spec.config)))
        # Why the instance is dead; empty while it is not.
        self._death = ""

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Run the model's `auto_complete_config`, if it has one, in a worker of its own.

        Raises:
            Internal: it failed; the text is the Python exception with its place.
            InvalidArgument: what it returned is no configuration.
        """
        _check_file(source)
        name = f"{source.name} (auto_complete_config)"
        link = _start(source, name, cls.link_type)
        debugger = PythonSettings.of(source).debugger
        head = {**_place(source), "config": to_json_form(source.config), "debugger": debugger}
        questions = Questions(link, source)
        try:
            completed = (await _begin(source, link, COMPLETE, head, doing="auto_complete_config")).config
        finally:
            await link.close()
            questions.close()
        if completed is None:
            return source.config
        what = f"auto_complete_config of model '{source.name}' returned a wrong configuration"
        return from_json_form(completed, what=what)

    async def load(self) -> None:
        """Start the worker and initialize the model, for as long as that takes. Cancelled, it leaves no process.

        Raises:
            Internal: the model failed, or its process ended; the text says how.
            ServerError: the configuration asks for what cannot be.
        """
        source = self.spec.source
        _check_file(source)
        settings = PythonSettings.of(source)
        if settings.debugger:
            self.unload_seconds = math.inf
        link = _start(source, self.spec.name, self.link_type)
        try:
            self._questions = Questions(link, source)
            self._questions.may_load = True
            self._batches = Batches(link, self.spec, self._outputs, concurrency=1)
            models = None if source.services is None else source.services.models
            BlsCalls(link, self._batches, models, limit=settings.calls)
            done = await _begin(source, link, INITIALIZE, self._initialize_head(link, settings), doing="initialize")
            if done.is_async and source.config.sequence_batching is None:
                self._batches.concurrency = settings.concurrency
            if done.has_is_ready:
                self._readiness = Readiness(link)
            self._questions.loading = ""
        except BaseException:
            await self._close(link)
            raise
        self._link = link

    def _initialize_head(self, link: WorkerLink, settings: PythonSettings) -> dict[str, object]:
        source = self.spec.source
        arguments = {
            "model_config": json.dumps(to_json_form(source.config)),
            "model_instance_kind": self.spec.kind.name,
            "model_instance_name": self.spec.name,
            "model_instance_device_id": str(self.spec.device_id),
            "model_repository": str(source.model_directory),
            "model_version": str(source.version),
            "model_name": source.name,
        }
        return {
            **_place(source),
            "args": arguments,
            "outputs": sorted(self._outputs),
            "can_share": link.arena.is_usable,
            "is_decoupled": source.config.is_decoupled,
            "logs_verbose": link.logs_verbose,
            "calls": settings.calls,
            "debugger": settings.debugger,
        }

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        """One batch. Cancelled, the worker finishes it, and the next one waits for that.

        Outputs are copies, or views of memory that nobody writes to again.
        """
        return await self._execute(requests, None)

    async def execute_overlapping(self, requests: Sequence[InferenceRequest], free: Callable[[], None]) -> BatchResult:
        """`free` is called while a coroutine `execute` goes on, and while requests wait for their response senders."""
        # A sequence's requests run one after the other.
        return await self._execute(requests, free if self.spec.config.sequence_batching is None else None)

    async def _execute(self, requests: Sequence[InferenceRequest], free: Callable[[], None] | None) -> BatchResult:
        responses, timing = await self._attended(lambda batches: batches.run(requests, free))
        return BatchResult(responses, timing)

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        waits = self.spec.config.sequence_batching is not None  # only then a round's end is known
        return await self._attended(lambda batches: batches.run_decoupled(requests, responders, waits=waits))

    async def _attended(self, work: Callable[[Batches], Awaitable[T]]) -> T:
        link, batches = self._link, self._batches
        if link is None or batches is None or self._death:
            raise InstanceDied(self._death or f"model instance '{self.spec.name}' is not loaded")
        try:
            if link.is_attended:
                return await work(batches)
            return await link.attending(partial(work, batches))
        except (WorkerGone, BrokenFrame) as gone:
            raise await self._died(link, str(gone)) from None

    def cancel(self, request: InferenceRequest) -> None:
        if self._batches is not None:
            self._batches.cancel(request)

    async def is_ready(self) -> bool:
        """Ask the model, if it has an opinion."""
        if self._link is None or self._death:
            return False
        return self._readiness is None or await self._readiness.check()

    async def _died(self, link: WorkerLink, problem: str) -> InstanceDied:
        self._death = f"model instance '{self.spec.name}' died: its worker process {await link.end_text(problem)}"
        return InstanceDied(self._death)

    async def wait_died(self) -> None:
        await self.attend()

    async def attend(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take all that the worker sends. While nobody does, `execute` does it for itself, and what a batch has begun
        ends with it."""
        link = self._link
        if link is None:
            await trio.sleep_forever()
        else:
            await link.attend(task_status=task_status)
            if self._link is not None and self._batches is not None:
                self._batches.fail_streams(await self._died(link, link.channel.problem))
        if self._link is None:  # unloaded meanwhile
            await trio.sleep_forever()

    async def unload(self) -> None:
        """Finalize the model within some seconds, or in its own time where it is debugged, then end its process and
        whatever it started."""
        link, self._link = self._link, None
        if link is not None:
            if self._questions is not None:
                self._questions.may_load = False
            try:
                await link.stop(is_patient=self.unload_seconds == math.inf)
            finally:
                await self._close(link)

    async def _close(self, link: WorkerLink) -> None:
        await link.close()
        if self._questions is not None:
            self._questions.close()


def _check_file(source: ModelSource) -> None:
    path = source.model_file
    if path.suffix != ".py":
        raise InvalidArgument(f"Model name must end with '.py'. Model name is \"{path.name}\".")
    if not path.is_file():
        raise Internal(f"Python model file not found in '{path}'")


def _place(source: ModelSource) -> dict[str, object]:
    return {"path": str(source.model_file), "directory": str(source.model_directory)}


def _start(source: ModelSource, name: str, link_type: type[WorkerLink]) -> WorkerLink:
    environment = find_environment(source)
    log = logging.getLogger(f"trioton.model.{source.name}")
    try:
        return link_type(environment, PythonSettings.of(source), log, name)
    except OSError as error:
        raise Internal(
            f"model '{source.name}': cannot start the interpreter '{environment.interpreter}': {error}"
        ) from error


async def _begin(
    source: ModelSource, link: WorkerLink, kind: int, head: Mapping[str, object], *, doing: str
) -> DoneHead:
    """The worker's answer to its first frame, for which there is no time limit.

    Raises:
        Internal: the model has failed, or the worker has ended; the text says how, and what was printed last.
    """
    async with link.attended():
        outcome = await link.request(kind, head)
        end = await link.end_text(str(outcome)) if isinstance(outcome, WorkerGone) else ""
    if isinstance(outcome, DoneHead):
        return outcome
    if isinstance(outcome, WorkerFailed):
        raise Internal(str(outcome))
    printed = "".join(f"\n  {line}" for line in link.tail())
    raise Internal(
        f"model '{source.name}': the worker process of '{link.name}' {end} during {doing}"
        + (f"; it printed last:{printed}" if printed else "")
    )
