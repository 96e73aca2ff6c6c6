"""Supervised instance: keeps one model instance running, and starts it again when it has died: at once where it had
done work, else with back-off.

Flow: model → [supervised instance] → model instance. Runs in the model's nursery; cancelled, it leaves no instance.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from actors.instance.instance import ModelInstance
from actors.model.backoff import RestartBackoff
from backends.interface import InstanceSpec
from protocol.errors import text_of
from protocol.failures import CallbackFailures
from repository.model_config import InstanceKind

logger = logging.getLogger("trioton.model")

INSTANCE_STATES = ("ready", "loading", "backoff")


class InstanceStatus(NamedTuple):
    """For people. `state` is one of `INSTANCE_STATES`, `restarts` counts its deaths that a restart has followed or
    will, and `last_error` is what the last death or failed restart was told by."""

    name: str
    state: str
    restarts: int
    last_error: str
    device: str


@dataclass(eq=False, slots=True)
class SupervisedInstance:
    """`make` gives a new instance, not yet loaded. `over` is set when it is to be started no more. `delayed` is called
    when a restart is put off; until then, and from the restart on, the instance `is_coming`, or serves."""

    spec: InstanceSpec
    make: Callable[[SupervisedInstance], ModelInstance]
    delayed: Callable[[], None]
    failures: CallbackFailures = field(default_factory=CallbackFailures)
    over: trio.Event = field(default_factory=trio.Event)
    is_coming: bool = True
    restarts: int = 0
    # That of an instance that is loading again after a death: an end does not wait for it.
    _restart: trio.CancelScope | None = None
    # Told when the first one serves.
    _first: trio.TaskStatus[None] | None = None
    _has_served: bool = False  # the present one
    _last_error: str = ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Returns when it is over and the instance has unloaded. Only the first load's failure is raised."""
        instance = self.make(self)
        self._first = task_status
        born = trio.current_time()
        try:
            await instance.run(task_status=self)
        except Exception as error:
            if not self._has_served:
                raise
            self._note_death(error)
        backoff = RestartBackoff()
        while not self.over.is_set():
            self._last_error = instance.death_text or self._last_error
            now = trio.current_time()
            delay = backoff.delay(now=now, born=born, has_worked=instance.has_worked)
            self.restarts += 1
            when = f"in {delay:.3g} s" if delay else "now"
            logger.warning("model instance '%s' has died; starting it again %s", self.spec.name, when)
            if delay:
                self.is_coming = False
                self.delayed()
                with trio.move_on_after(delay):
                    await self.over.wait()
                    return
                self.is_coming = True
            born = trio.current_time()
            instance = self.make(self)
            try:
                await self._run_again(instance)
            except Exception as error:
                self._note_death(error)

    def status(self) -> InstanceStatus:
        spec = self.spec
        device = f"GPU {spec.device_id}" if spec.kind is InstanceKind.GPU else "CPU"
        return InstanceStatus(spec.name, self.state, self.restarts, self._last_error, device)

    @property
    def state(self) -> str:
        """ "ready", "loading", or "backoff": its restart is put off."""
        if not self.is_coming:
            return "backoff"
        return "ready" if self._has_served else "loading"

    def end(self) -> None:
        """Start no more instances. One that serves is ended by the scheduler."""
        self.over.set()
        if self._restart is not None:
            self._restart.cancel()

    def started(self, value: None = None) -> None:
        """As a task status, of an instance: it serves."""
        self._restart = None
        self._has_served = True
        if self._first is not None:
            first, self._first = self._first, None
            first.started()

    def _note_death(self, error: Exception) -> None:
        self._last_error = text_of(error)
        if self._has_served:
            self.failures.note("instance", error, f"model instance '{self.spec.name}' failed, and is started anew")
        else:
            logger.error("model instance '%s' failed to start again: %s", self.spec.name, error)

    async def _run_again(self, instance: ModelInstance) -> None:
        self._has_served = False
        with trio.CancelScope() as self._restart:
            try:
                await instance.run(task_status=self)
            finally:
                self._restart = None
