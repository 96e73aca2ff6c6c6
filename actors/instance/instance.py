"""Model instance: one loaded copy of a model, from its load to its unload.

Flow: scheduler → [model instance: batch slots → batch runner] → backend. Started and owned by the model actor
(`actors.model.supervisor`); knows its backend and the address of its scheduler. Closing its slots has it finish and
unload; cancelling it has it report what runs as stopped, and unload within a bounded time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from actors.instance.decoupled import DecoupledRunner
from actors.instance.rate_limiter import InstanceLimit
from actors.instance.runner import BatchRunner
from actors.instance.slot import BatchSlot
from actors.instance.warmup import warm_up
from actors.mail.messages import InstanceGone, InstanceReady, SchedulerAddress
from actors.metrics.response_statistics import ResponseStatistics
from backends.interface import Backend, InstanceDied
from protocol.errors import Unavailable
from protocol.failures import CallbackFailures
from repository.warmup_data import WarmupSample

logger = logging.getLogger("trioton.model_instance")


@dataclass(eq=False, slots=True)
class ModelInstance:
    """An actor. `limit` makes it wait for the resources that its batches need. One that is passive is loaded
    `passive_until` then, and takes no requests."""

    name: str
    backend: Backend
    scheduler: SchedulerAddress
    is_decoupled: bool = False
    runs_ahead: bool = False  # its backend is given the next batch while it still runs one
    is_iterative: bool = False  # its requests may be `Rescheduled`
    warmup: Sequence[WarmupSample] = ()
    limit: InstanceLimit | None = None
    responses: ResponseStatistics = field(default_factory=ResponseStatistics)  # of a decoupled model
    failures: CallbackFailures = field(default_factory=CallbackFailures)
    passive_until: trio.Event | None = None
    _runner: BatchRunner = field(init=False)
    _slots: set[BatchSlot] = field(default_factory=set, init=False)
    # Those that end with their present batch: the instance has another slot for the next.
    _freed: set[BatchSlot] = field(default_factory=set, init=False)
    _serving: trio.CancelScope | None = field(default=None, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        about = self.name, self.backend, self.scheduler, self.failures, self._slot_ended, self.runs_ahead
        if self.is_decoupled:
            self._runner = DecoupledRunner(*about, responses=self.responses, is_iterative=self.is_iterative)
        else:
            self._runner = BatchRunner(*about)

    @property
    def has_worked(self) -> bool:
        """Whether a batch has ended well: a restart is then likely to help."""
        return self._runner.has_worked

    @property
    def death_text(self) -> str:
        """How it has ended by itself, for people; empty where nothing is known."""
        return self.backend.death_text()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load, warm up, serve, unload. Started when it serves. A failed load or warm-up is raised; returns when its
        slots are closed, or when the backend has died."""
        failure: Exception | None = InstanceDied(f"model instance '{self.name}' has died before it was ready")
        try:
            await self.backend.load()
            async with trio.open_nursery() as nursery:
                await nursery.start(self._watch, nursery.cancel_scope)
                try:
                    if self.passive_until is None:
                        await warm_up(self.backend, self.warmup)
                        failure = None
                        await self._serve(task_status, nursery.cancel_scope)
                    else:
                        failure = None
                        task_status.started()
                        await self.passive_until.wait()
                except Exception as error:  # raised below, where no nursery puts it into a group
                    failure = error
                nursery.cancel_scope.cancel()
        finally:
            await self._unload()
        if failure is not None:
            raise failure

    async def _serve(self, task_status: trio.TaskStatus[None], serving: trio.CancelScope) -> None:
        runner = self._runner
        self._serving = serving
        runner.now = trio.lowlevel.current_clock().current_time
        try:
            async with trio.open_nursery() as self._nursery:
                runner.nursery = self._nursery
                self._open_slot(self._nursery)
                task_status.started()
        finally:
            runner.stop()
            for slot in self._slots:
                runner.report(InstanceGone(slot.address))
                slot.close()
            if isinstance(runner, DecoupledRunner):
                runner.close_streams(runner.why_stopped())

    async def _watch(self, serving: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        """End the instance when its backend dies while idle; during a batch the batch's end says so."""
        await self.backend.attend(task_status=task_status)
        self._runner.has_died = True
        if not self._runner.executing:
            serving.cancel()

    async def _unload(self) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self.backend.unload_seconds) as unloading:
            try:
                await self.backend.unload()
            except Exception:  # an instance that cannot be freed must not take the server down
                logger.exception("model instance '%s' failed to unload", self.name)
        if unloading.cancelled_caught:
            logger.error("model instance '%s' did not unload within %g s", self.name, self.backend.unload_seconds)

    # Slots

    def _open_slot(self, nursery: trio.Nursery) -> None:
        def prefetch(slot: BatchSlot) -> None:
            nursery.start_soon(self._prefetch, slot)

        begin = None if self.limit is not None or self.is_decoupled else self._runner.begin
        slot = BatchSlot(self.name, begin, self._free, prefetch if self.runs_ahead else None)
        self._slots.add(slot)
        self.scheduler.send_nowait(InstanceReady(slot.address))
        if self.limit is None:
            nursery.start_soon(self._serve_slot, slot)
        else:
            nursery.start_soon(self._serve_slot_in_turns, slot, self.limit)

    def _free(self, slot: BatchSlot) -> None:
        """The backend can take a batch beside that of a slot: open another slot, and close this one with its batch."""
        is_going = self._runner.has_died or slot.is_closed
        if slot not in self._freed and self._nursery is not None and not is_going:
            self._freed.add(slot)
            try:
                self._open_slot(self._nursery)
            except Unavailable:
                pass  # the scheduler has ended
            except Exception as error:
                self._runner.note(error, "it has no slot for another batch until its present one has ended")
                self._freed.discard(slot)

    def _slot_ended(self, slot: BatchSlot) -> bool:
        """A slot's batch has ended; whether the slot takes another one. Begins that, if it is here already."""
        runner = self._runner
        if runner.has_died and self._serving is not None:
            self._serving.cancel()
        if slot in self._freed:
            self._freed.remove(slot)
            self._slots.discard(slot)
            slot.close()
            return False
        if runner.has_died:
            return False
        if not runner.is_stopping:
            try:
                slot.begin_next()
            except Exception as error:  # the batch that has ended is to be reported all the same
                runner.note(error, "its next batch could not be begun, and is left to its task")
        return True

    async def _serve_slot(self, slot: BatchSlot) -> None:
        """Run what a call could not begin, or had no time for, until the slot is closed."""
        while (message := await slot.receive()) is not None:
            slot.is_busy = True
            if slot.is_put_off:
                slot.is_put_off = False
                self._runner.begin(slot, message)
            else:
                await self._runner.run(slot, message, slot.free)
            del message  # an idle slot keeps no tensors, and no client's shared memory

    async def _serve_slot_in_turns(self, slot: BatchSlot, limit: InstanceLimit) -> None:
        """As `_serve_slot`, each batch when it is the instance's turn. A batch that is queued when another ends stands
        in line before what that one held goes to anybody else."""
        while (message := await slot.receive()) is not None:
            async with limit:
                while message is not None:
                    slot.is_busy = True
                    await self._runner.run(slot, message, None)
                    message = slot.receive_nowait()
                    if message is not None:
                        await limit.renew()

    async def _prefetch(self, slot: BatchSlot) -> None:
        """Give the backend its next batch while it runs one."""
        await trio.lowlevel.checkpoint()  # until it has been given the one before, so that batches keep their order
        message = slot.receive_nowait()
        if message is not None:  # else that one has ended, and the slot's task has taken it
            await self._runner.run(slot, message, None)
