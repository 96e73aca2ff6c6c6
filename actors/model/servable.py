"""Servable: the interface of one version of a model, of whichever kind: with instances, ensemble or traffic split.

A model with instances (`actors.model.model.Model`), an ensemble (`actors.ensemble.ensemble.Ensemble`), or a traffic
split (`actors.model.traffic_split.TrafficSplit`). The loader chooses by the configuration; no other code depends on the
kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import trio

from actors.metrics.statistics import VersionStatistics
from actors.model.submission import Submission
from actors.model.supervisor import InstanceStatus
from protocol.core import MemoryUsage, QueueRoom, ReplyChannel, Respond
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.text.model import TextModel
from repository.model_config import ModelConfig


class ComposingModel(Protocol):
    """What an ensemble needs of the models of its steps."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """The labels of an output's classes by index, by the output's name; outputs without any are left out."""

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered, by all that is to answer them. One that was evicted for the memory budget is:
        a request has it loaded."""

    @property
    def takes_device_tensors(self) -> bool:
        """Whether device tensors are accepted as inputs without a copy to the host."""

    @property
    def queue_takes_timeout(self) -> bool:
        """Whether a request's `timeout` limits its time in a queue; else it is a deadline for the whole request."""

    async def check_ready(self) -> bool:
        """As `is_ready`, also asking every model that defines `is_ready`."""
        ...

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Submit a request and wait for its answer. Raises ServerError; cancelled, the request is given up."""
        ...

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        """As `protocol.core.InferenceCore.infer_stream`."""
        ...


# A model by name and version (-1 for the latest that is ready); raises ServerError if it does not serve.
FindModel: TypeAlias = Callable[[str, int], ComposingModel]


class Servable(ComposingModel, Protocol):
    """One version. `run` loads it and serves until it is drained; the other members are its address.

    Attributes:
        version: its number.
        statistics: what was counted of its requests.
        is_evicted: it was unloaded for the memory budget, and the next request has its successor loaded.
        predecessor: the version that this one has replaced, while sequences are open there.
        find_successor: looks a request's model up again, for requests that reach this one after it was replaced.
    """

    version: int
    statistics: VersionStatistics
    is_evicted: bool
    predecessor: Servable | None
    find_successor: Callable[[InferenceRequest], Servable] | None

    @property
    def name(self) -> str: ...

    @property
    def is_decoupled(self) -> bool:
        """Whether it answers a request with any number of responses, so that only `infer_stream` serves it."""

    @property
    def text(self) -> TextModel | None:
        """What edges have to know of a model with text; None for any other."""

    @property
    def takes_shared_tensors(self) -> bool:
        """Whether inputs that are still in their client's memory go on as they are."""

    def known_readiness(self) -> bool | None:
        """What `check_ready` would say where no model has to be asked, None where one has. Does not wait."""

    # Requests.

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, later: bool = False) -> Submission:
        """As `protocol.core.InferenceCore.submit`."""

    def flush(self) -> None:
        """Run what was submitted with `later`."""

    def check(self, request: InferenceRequest) -> None:
        """Raises what is wrong with a request, as far as the configuration says."""

    def continues_sequence(self, request: InferenceRequest) -> bool:
        """Whether a request belongs to a sequence that is open here."""

    @property
    def open_sequences(self) -> int:
        """The sequences that have begun and not ended."""

    @property
    def pending_count(self) -> int:
        """The number of requests in the queue."""

    @property
    def has_work(self) -> bool:
        """Whether requests wait, or sequences are open, whose state would be lost with it."""

    # Its life.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when it is loaded; a failed load is raised as one ServerError, after clean-up. Returns when drained
        and unloaded."""

    def drain(self, *, lets_sequences_end: bool = False) -> None:
        """Drain: accept no more requests, finish those that are here, unload; `run` then returns. With
        `lets_sequences_end` open sequences go on until they end."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""

    def follow(self, replaced: Servable) -> None:
        """Send requests of sequences that are open with a version that this one has replaced, or with one before that,
        on to there."""

    def check_composing(self) -> ServerError | None:
        """A composing model was replaced: use the new one. Returns why it cannot serve since, if so."""

    @property
    def can_update_instances(self) -> bool:
        """Whether `update_instances` may be called: there are instances, and neither sequences nor resources are bound
        to them."""

    async def update_instances(self, wanted: Servable) -> None:
        """Have the configuration and the instances of `wanted`, which was made from the same files and never run.

        Raises:
            ServerError: one could not be loaded; nothing has changed then.
        """

    def continue_from(self, evicted: Servable) -> None:
        """Before it runs: take over what was counted of the one that was evicted, and its adapters."""

    # Adapters.

    async def add_adapter(self, name: str, path: str, folders: Sequence[Path], *, replace: bool) -> None:
        """As `protocol.core.InferenceCore.load_adapter`; `folders` are those that others than the model's own may lie
        in."""

    async def remove_adapter(self, name: str) -> None:
        """As `protocol.core.InferenceCore.unload_adapter`."""

    # Sleep.

    @property
    def can_sleep(self) -> bool:
        """Whether it has engines that can sleep now, or do."""

    @property
    def sleep_level(self) -> int:
        """As of `backends.interface.Backend`: the greatest of its instances."""

    async def sleep(self, level: int) -> None:
        """As `protocol.core.InferenceCore.sleep`."""

    async def wake(self) -> None:
        """As `protocol.core.InferenceCore.wake`."""

    async def reset_prefix_cache(self) -> None:
        """As `protocol.core.InferenceCore.reset_prefix_cache`."""

    # What it takes.

    @property
    def source(self) -> object:
        """What its instances are loaded from (`backends.interface.ModelSource`), None where there are none."""

    @property
    def spec_count(self) -> int:
        """The instances that it has when all are loaded."""

    def instances(self) -> Sequence[InstanceStatus]:
        """How its instances fare; empty where it has none of its own."""

    @property
    def gpu(self) -> int | None:
        """The GPU that all instances are on, if there is one such."""

    def memory_usage(self) -> list[MemoryUsage]:
        """The memory that all instances hold, by type and device."""

    def queue_room(self) -> QueueRoom | None:
        """What its queue takes before it refuses requests; None where that has no bounds."""

    # For the metrics.

    def instance_states(self) -> Mapping[str, int]:
        """How many instances are "ready", "loading" and in "backoff"; empty where there are none."""

    @property
    def restarts(self) -> int:
        """How often an instance that had died was started again."""

    def arena_bytes(self) -> int:
        """The memory that workers share with the server."""

    def version_label(self, *, is_only: bool) -> int:
        """The version as the metrics show it; `is_only`: no other one of its name serves."""

    def routed(self) -> Sequence[tuple[str, str, str, int]]:
        """Forwarded requests, for the metrics: target, its version (-1 for the latest), role, and count."""
