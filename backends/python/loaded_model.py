"""A loaded model: one `TritonPythonModel` object in its worker, from `initialize` to `finalize`.

Flow: backend → [loaded model] → `batches` → `link` → worker. An instance that is restarted has two for a while.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from backends.interface import InstanceSpec, ModelSource
from backends.python.batches.batches import Batches
from backends.python.bls.bls import BlsCalls
from backends.python.bls.questions import Questions
from backends.python.in_loop.in_loop import InLoopWorker
from backends.python.in_loop.loop_batches import LoopBatches
from backends.python.launcher import WorkerLauncher
from backends.python.settings import Isolation, PythonSettings
from backends.python.wire.channel import WorkerGone
from backends.python.wire.heads import DoneHead
from backends.python.worker.trioton_worker.frames import INITIALIZE
from backends.python.workers.link import WorkerFailed, WorkerLink
from backends.python.workers.readiness import Readiness
from protocol.errors import Internal
from repository.json_form import to_json_form
from repository.model_config import InstanceKind, ModelConfig

T = TypeVar("T")

# The place of a `_ConfigText` in what the instances of a load share.
_CONFIG_TEXT = "python: configuration"


@dataclass(frozen=True, slots=True)
class _ConfigText:
    config: ModelConfig
    text: str


@dataclass(eq=False, slots=True)
class LoadedModel:
    """`calls` counts the tasks that use it now, `requests` all that it was given. A task that reads the worker's frames
    for long does so in `attendance`, and sets `left` after that."""

    link: WorkerLink
    batches: Batches
    questions: Questions
    readiness: Readiness | None = None
    is_debugged: bool = False
    calls: int = 0
    requests: int = 0
    attendance: trio.CancelScope = field(default_factory=trio.CancelScope)
    left: trio.Event = field(default_factory=trio.Event)

    @classmethod
    async def load(
        cls, spec: InstanceSpec, launcher: WorkerLauncher, place: Mapping[str, object], outputs: frozenset[str]
    ) -> LoadedModel:
        """Start the worker and initialize the model, for as long as that takes. Cancelled, it leaves nothing behind.

        `place` is where the model's files are, as the head of INITIALIZE says it.

        Raises:
            Internal: the model failed, or its worker ended; the text says how.
            ServerError: the configuration asks for what cannot be.
        """
        source = spec.source
        settings = PythonSettings.of(source)
        preload = {**place, "args": _arguments(spec, f"{source.name}_template")}
        link = await launcher.launch(spec.name, spec.kind, preload, spec.cpu_cores)
        questions = Questions(link, source)
        try:
            questions.may_load = True
            if isinstance(link.runner, InLoopWorker):
                batches: Batches = LoopBatches(link, spec, outputs, link.runner, questions)
            else:
                batches = Batches(link, spec, outputs, concurrency=1, byte_limit=settings.shm_limit_byte_size)
            loaded = cls(link, batches, questions, is_debugged=bool(settings.debugger))
            models = None if source.services is None else source.services.models
            BlsCalls(link, loaded.batches, models, limit=settings.calls, byte_limit=settings.shm_limit_byte_size)
            head = {
                **place,
                "args": _arguments(spec, spec.name),
                "outputs": sorted(outputs),
                "can_share": link.arena.is_usable,
                "is_decoupled": source.config.is_decoupled,
                "is_in_loop": settings.isolation is Isolation.IN_LOOP,
                "logs_verbose": link.logs(logging.DEBUG),
                "calls": settings.calls,
                "byte_limit": settings.shm_limit_byte_size,
                "input_device": spec.device_id if _has_device_inputs(spec, settings) else None,
                "debugger": settings.debugger,
                "cpu_cores": sorted(spec.cpu_cores),
            }
            done = await begin(source, link, INITIALIZE, head, doing="initialize")
            if done.is_async:
                loaded.batches.let_overlap()
            if done.has_is_ready:
                loaded.readiness = Readiness(link)
            questions.loading = ""
        except BaseException:
            await link.close()
            questions.close()
            raise
        return loaded

    def end_call(self) -> None:
        """A call has ended."""
        self.calls -= 1
        self.batches.open.tell_changed()

    async def wait_idle(self) -> None:
        """Wait until nobody uses it, and no reply is outstanding; or it has died."""
        while (self.calls or self.batches.open.has_any) and not self.link.channel.is_closed:
            await self.batches.open.wait_changed()

    async def stop(self) -> None:
        """Finalize the model within some seconds, or in its own time where it is debugged, then end its worker and
        whatever it started."""
        self.questions.may_load = False
        try:
            await self.link.stop(is_patient=self.is_debugged)
        finally:
            self.questions.close()


def _has_device_inputs(spec: InstanceSpec, settings: PythonSettings) -> bool:
    return spec.kind is InstanceKind.GPU and not settings.force_cpu_inputs


def _arguments(spec: InstanceSpec, name: str) -> dict[str, str]:
    """The arguments of the model's `initialize`."""
    source = spec.source
    return {
        "model_config": _config_text(source),
        "model_instance_kind": spec.kind.name,
        "model_instance_name": name,
        "model_instance_device_id": str(spec.device_id),
        "model_repository": str(source.model_directory.absolute()),
        "model_version": str(source.version),
        "model_name": source.name,
    }


def _config_text(source: ModelSource) -> str:
    """The configuration as the model gets it; written once for all instances that have the same."""
    kept = source.shared.get(_CONFIG_TEXT)
    if not (isinstance(kept, _ConfigText) and kept.config is source.config):
        kept = source.shared[_CONFIG_TEXT] = _ConfigText(source.config, json.dumps(to_json_form(source.config)))
    return kept.text


async def begin(
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
        f"model '{source.name}': the {link.runner.noun} of '{link.name}' {end} during {doing}"
        + (f"; it printed last:{printed}" if printed else "")
    )
