"""Instance pool: the supervised instances of one model version, and their exchange when instance groups change.

Flow: model → [model instances] → supervised instance → model instance. Owned by the model, and run in its nursery;
tells the scheduler which instances go, and is told by the model when the scheduler has drained.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import trio

from actors.instance.instance import ModelInstance
from actors.instance.rate_limiter import InstanceLimit, ModelLimits
from actors.instance.readiness import all_ready
from actors.mail.messages import RemoveInstance, RestartDelayed, SchedulerAddress, stopped_accepting
from actors.metrics.response_statistics import ResponseStatistics
from actors.model.instance_plan import plan_instances
from actors.model.supervisor import INSTANCE_STATES, InstanceStatus, SupervisedInstance
from backends.interface import AddedAdapter, Backend, InstanceSpec
from backends.padded import PaddedBackend
from backends.padding import Padding
from protocol.core import MemoryUsage, QueueRoom
from protocol.errors import Internal, ServerError, Unavailable, text_of
from protocol.failures import CallbackFailures
from repository.model_config import InstanceKind, ModelConfig
from repository.shape_rules import read_shape_rules
from repository.warmup_data import WarmupSample

logger = logging.getLogger("trioton.model")


class ModelInstances:
    """`load` starts them; they run until `end`, or until `update` removes them."""

    def __init__(
        self,
        config: ModelConfig,
        backend: type[Backend],
        specs: Sequence[InstanceSpec],
        *,
        warmup: Sequence[WarmupSample],
        limits: ModelLimits | None,
        responses: ResponseStatistics,
        failures: CallbackFailures | None = None,
        adapters: Mapping[str, AddedAdapter] | None = None,
    ) -> None:
        self._failures = failures or CallbackFailures()
        self.specs = specs
        self.is_over = False
        self._config = config
        self._backend = backend
        self._warmup = warmup
        self._limits = limits
        self._responses = responses
        self._adapters = {} if adapters is None else adapters
        self._runs_ahead = False
        # The latest of each instance, by its name.
        self._loaded: dict[str, Backend] = {}
        self._supervised: list[SupervisedInstance] = []
        self._former_restarts = 0
        self._scheduler: SchedulerAddress | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def active_count(self) -> int:
        """The number of instances that take requests, when all are loaded."""
        return sum(not spec.is_passive for spec in self.specs)

    @property
    def gpu(self) -> int | None:
        """The GPU that all instances are on, if there is one such."""
        found = {spec.device_id if spec.kind is InstanceKind.GPU else None for spec in self.specs}
        return found.pop() if len(found) == 1 else None

    @property
    def can_update(self) -> bool:
        """Whether there are instances, and no resources are bound to them."""
        return bool(self.specs) and self._limits is None

    def statuses(self) -> Sequence[InstanceStatus]:
        return [each.status() for each in self._supervised]

    def backends(self) -> Sequence[Backend]:
        """Of all instances the latest, which may be loading, or dead."""
        return list(self._loaded.values())

    def known_readiness(self) -> bool | None:
        """What `check_ready` would say where no model has to be asked; None where one has."""
        known = [backend.known_readiness() for backend in self._loaded.values()]
        return False if False in known else None if None in known else True

    async def check_ready(self) -> bool:
        """Whether every backend is ready, asking the models themselves."""
        return await all_ready([backend.is_ready for backend in self._loaded.values()])

    def memory_usage(self) -> list[MemoryUsage]:
        """The memory that all instances hold, by type and device."""
        found: Counter[tuple[str, int]] = Counter()
        for name, backend in self._loaded.items():
            try:
                for used in backend.memory_usage():
                    found[used.type, used.id] += used.byte_size
            except Exception:  # the statistics are worth more than one row of them
                logger.exception("model instance '%s' cannot tell its memory usage", name)
        return [MemoryUsage(type, id, size) for (type, id), size in sorted(found.items())]

    def states(self) -> Mapping[str, int]:
        """How many instances are in each state of `INSTANCE_STATES`."""
        return {**dict.fromkeys(INSTANCE_STATES, 0), **Counter(each.state for each in self._supervised)}

    @property
    def restarts(self) -> int:
        """How often an instance was started again, of those that are there and of those that were removed."""
        return self._former_restarts + sum(each.restarts for each in self._supervised)

    def arena_bytes(self) -> int:
        """The memory that workers share with the server, of all instances."""
        found = 0
        for name, backend in self._loaded.items():
            try:
                found += backend.arena_bytes()
            except Exception:  # the metrics are worth more than one of them
                logger.exception("model instance '%s' cannot tell what it shares with the server", name)
        return found

    def queue_room(self) -> QueueRoom | None:
        """What the queues of all instances take; None where they have none with bounds."""
        rooms = [room for backend in self._loaded.values() if (room := backend.queue_room()) is not None]
        return sum(rooms, QueueRoom()) if rooms else None

    async def load(self, scheduler: SchedulerAddress, nursery: trio.Nursery, *, runs_ahead: bool) -> None:
        """Returns when all are loaded. They run in `nursery`, which a failed load ends with its error
        (`load_error`). With `runs_ahead` the scheduler gives a busy instance its next batch too."""
        self._scheduler, self._nursery, self._runs_ahead = scheduler, nursery, runs_ahead
        await self._start(self.specs, nursery)

    def end(self) -> None:
        """The scheduler has drained, and ends those that serve; none is restarted."""
        self.is_over = True
        for each in self._supervised:
            each.end()

    async def update(self, wanted: ModelInstances) -> None:
        """Become as `wanted`, which was never loaded, with its configuration. Those that are alike stay, whatever they
        are called; others are added first, and then those left over finish their batch and are unloaded.

        Raises:
            ServerError: one could not be loaded; nothing has changed then.
        """
        if self._nursery is None or self.is_over:
            raise stopped_accepting()
        plan = plan_instances(
            [each.spec for each in self._supervised if not each.over.is_set()],
            wanted.specs,
            [each.spec.name for each in self._supervised],
        )
        await self._add(plan.added, self._nursery)
        self._config = wanted._config
        self.specs = plan.specs
        self._remove({spec.name for spec in plan.removed})

    async def _start(self, specs: Sequence[InstanceSpec], nursery: trio.Nursery) -> None:
        async with trio.open_nursery() as starting:
            for spec in specs:
                starting.start_soon(nursery.start, self._supervise, spec)

    async def _add(self, specs: Sequence[InstanceSpec], nursery: trio.Nursery) -> None:
        try:
            await self._start(specs, nursery)
        except BaseExceptionGroup as group:
            self._remove({spec.name for spec in specs})
            _, rest = group.split(Exception)
            if rest is not None:
                raise
            raise load_error(group, self._config.name) from None

    def _remove(self, names: Collection[str]) -> None:
        for each in self._supervised:
            if each.spec.name in names:
                each.end()
                if self._scheduler is not None:
                    with suppress(Unavailable):
                        self._scheduler.send_nowait(RemoveInstance(each.spec.name))

    async def _supervise(self, spec: InstanceSpec, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep one instance running until the scheduler has drained, or it is removed. Only the first load's failure
        is raised."""
        limits = self._limits
        limit = None if limits is None else limits.of_instance(spec.name, spec.device_id, spec.source)
        supervised = SupervisedInstance(spec, partial(self._instance, limit), self._note_delay, self._failures)
        self._supervised.append(supervised)
        if self.is_over:
            supervised.end()
        try:
            await supervised.run(task_status=task_status)
        finally:
            self._retire(spec.name)
            self._supervised.remove(supervised)
            self._former_restarts += supervised.restarts
            if not self.is_over:
                self._loaded.pop(spec.name, None)
            if limit is not None:
                limit.close()

    def _retire(self, name: str) -> None:
        backend = self._loaded.get(name)
        try:
            if backend is not None:
                backend.retire()
        except Exception:  # an instance that is over must not take the server down
            logger.exception("model instance '%s' has not let go of all that it kept", name)

    def _note_delay(self) -> None:
        """A restart is delayed: requests must not wait for it, unless another one is under way."""
        if self._scheduler is not None and not any(
            each.is_coming for each in self._supervised if not each.spec.is_passive
        ):
            with suppress(Unavailable):  # the scheduler has ended
                self._scheduler.send_nowait(RestartDelayed())

    def _instance(self, limit: InstanceLimit | None, supervised: SupervisedInstance) -> ModelInstance:
        assert self._scheduler is not None  # it is started first
        config = self._config
        return ModelInstance(
            supervised.spec.name,
            self._backend_of(supervised.spec),
            self._scheduler,
            config.is_decoupled,
            runs_ahead=limit is None and self._runs_ahead and self._backend.can_run_ahead,
            is_iterative=config.sequence_batching is not None and config.sequence_batching.iterative_sequence,
            warmup=self._warmup,
            limit=limit,
            responses=self._responses,
            failures=self._failures,
            passive_until=supervised.over if supervised.spec.is_passive else None,
        )

    def _backend_of(self, spec: InstanceSpec) -> Backend:
        backend = self._backend(replace(spec, adapters=self._adapters))
        rules = read_shape_rules(self._config)
        if rules is not None and not backend.joins_requests:
            backend = PaddedBackend(backend, Padding(rules, self._config))
        self._loaded[spec.name] = backend
        return backend


def load_error(group: BaseExceptionGroup[BaseException], model: str) -> ServerError:
    """The most informative error of a failed load: a ServerError if there is one, else the first, named."""
    leaves = list(_leaves(group))
    for leaf in leaves:
        if isinstance(leaf, ServerError):
            return leaf
    logger.error("model '%s' failed to load", model, exc_info=leaves[0])
    return Internal(text_of(leaves[0]))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
