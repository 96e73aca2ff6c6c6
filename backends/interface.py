"""The interface between the actors and a framework; public as `trioton.backends`.

A *backend* is a class: one subclass of `Backend` per framework, found by name through the entry-point group
`trioton.backends` (see `backends.registry`). One object of it is one *model instance*: a loaded copy of one version
on one device, driven by a model instance actor, one batch at a time:

    complete_config (once per load) → load → execute* or execute_decoupled* → unload

All methods are awaited on the server's Trio loop, so they must not block it: a framework that blocks runs in a
thread of its own (`backends.array_backend.ArrayBackend` does that and the batching of arrays; most backends want
to subclass it), a framework that needs a process talks to one.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import trio

from backends.devices.devices import Devices
from backends.server_resources import ServerResources
from backends.services import BackendServices
from protocol.core import MemoryUsage, QueueRoom
from protocol.errors import Internal, ServerError, Unavailable, Unsupported
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import InstanceKind, ModelConfig, SecondaryDevice


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One version of a model on disk, with its configuration as far as it is known.

    `services`, `devices` and `resources` are for the server's own backends, and private.

    Attributes:
        name: the model's name.
        version: its number; 1 where the model has no version directories.
        model_directory: the model's folder, in which `config.pbtxt` lies.
        config: its configuration: complete when an instance is made, before that as it was written.
        settings: the server's `--backend-config` entries for this backend.
        services: the server's other models, and metrics of a model's own; there where the model may use them.
        shared: where a backend keeps what all instances of this load have in common.
        is_flat: the model has no version directories: its files lie in its own.
        devices: gives instances on GPUs their streams.
        resources: what backends keep beyond one load, as long as the server lives; None where there is no server.
    """

    name: str
    version: int
    model_directory: Path
    config: ModelConfig
    settings: Mapping[str, str] = field(default_factory=dict)
    services: BackendServices | None = field(default=None, compare=False, repr=False)
    shared: dict[str, object] = field(default_factory=dict, compare=False, repr=False)
    is_flat: bool = False
    devices: Devices = field(default_factory=Devices, compare=False, repr=False)
    resources: ServerResources | None = field(default=None, compare=False, repr=False)

    def for_device(self, kind: InstanceKind, compute_capability: str) -> ModelSource:
        """The same for an instance on a device: on a GPU whose compute capability is in `cc_model_filenames`, that file
        is the default model file."""
        filename = self.config.cc_model_filenames.get(compute_capability)
        if kind is not InstanceKind.GPU or not compute_capability or not filename:
            return self
        return replace(self, config=msgspec.structs.replace(self.config, default_model_filename=filename))

    @property
    def version_directory(self) -> Path:
        """The folder of this version's files."""
        return self.model_directory if self.is_flat else self.model_directory / str(self.version)

    @property
    def model_file(self) -> Path:
        """The path of the default model file, which may be a folder; whether it is there has not been looked at."""
        return self.version_directory / self.config.default_model_filename


@dataclass(frozen=True, slots=True, eq=False)
class AddedAdapter:
    """An adapter (LoRA) that was added while its model was loaded, or one of the model's own that was removed: then it
    has no folder. One that is added again is another object, also where its folder is the same. Private."""

    name: str
    folder: str = ""


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """What one instance is to load, and where.

    `adapters` is private.

    Attributes:
        source: the version of the model.
        name: the instance's name, for errors and logs.
        kind: CPU, GPU or MODEL (AUTO is resolved before).
        device_id: the GPU's number, where `kind` is GPU.
        is_passive: the instance is loaded, and executes nothing.
        cpu_cores: the cores that its threads and processes are to run on; all, where it is empty.
        profiles: those of its instance group.
        secondary_devices: those of its instance group.
        adapters: those that were added or removed while the model was loaded, by name; it changes, and `follow_adapter`
            tells of that.
    """

    source: ModelSource
    name: str
    kind: InstanceKind = InstanceKind.CPU
    device_id: int = 0
    is_passive: bool = False
    cpu_cores: frozenset[int] = frozenset()
    profiles: tuple[str, ...] = ()
    secondary_devices: tuple[SecondaryDevice, ...] = ()
    adapters: Mapping[str, AddedAdapter] = field(default_factory=dict, compare=False, repr=False)

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.source.config


class BatchTiming(msgspec.Struct, frozen=True):
    """Where a batch's time went, in nanoseconds.

    Attributes:
        compute_input_ns: gathering the inputs of the requests.
        compute_infer_ns: computing.
        compute_output_ns: scattering the outputs into responses.
    """

    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


class BatchResult(msgspec.Struct, frozen=True):
    """What a batch has come to.

    Attributes:
        responses: one entry per request of the batch, in order: its response, or the error that concerns it alone;
            `Rescheduled` for one that is to run again.
        timing: where the batch's time went.
    """

    responses: Sequence[InferenceResponse | ServerError]
    timing: BatchTiming


class Responder(Protocol):
    """The way back of one request to a decoupled model: any number of responses, then the end."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has gone; what is sent then is dropped."""

    async def send(self, response: InferenceResponse) -> None:
        """Give one response; waits while the client is slow to take them. One with `is_final` is the last, and ends
        the request. Cancelled: it was not sent, and the request goes on."""

    def send_nowait(self, response: InferenceResponse) -> bool:
        """As `send`, but False instead of waiting; then it was not sent."""

    def close(self, error: ServerError | None = None) -> None:
        """End the request, well or with an error. What comes after is ignored. `Rescheduled`, given before
        `execute_decoupled` returns, ends only this round of it, and `NotBegun` gives the request back."""


class HeldTensor(Tensor):
    """A state of a sequence that stays where its instance computes (`sequence_batching.state`).

    A backend answers with it and gets it with the next request of the sequence, as it is. Only the instance that made
    it can read it; `data` is empty where no client may ask for the output. Who drops it frees the memory.

    Attributes:
        held: the instance's own handle.
    """

    held: Any = None

    def as_input(self, name: str) -> HeldTensor:
        """The state as the next request has it, under its input's name."""
        return HeldTensor(name, self.datatype, self.shape, b"", self.held)


class Rescheduled(Internal):
    """In place of a response: the request has no answer yet and is to run again, in one of the next batches.

    Only for models with `sequence_batching.iterative_sequence`; a caller of any other model gets it as its error.

    Attributes:
        outputs: state outputs of this round (`sequence_batching.state`), which the next round gets.
    """

    def __init__(self, outputs: Sequence[Tensor] = ()) -> None:
        super().__init__(
            "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to "
            "handle such a flag."
        )
        self.outputs = outputs


class NotBegun(Unavailable):
    """In place of a response, and of an end: the instance has died before it has begun the request, which is queued
    again. Only for decoupled models without sequences. Private."""

    def __init__(self) -> None:
        super().__init__("the model instance has died before it has begun the request")


class Started(enum.Enum):
    """The type of `STARTED`."""

    STARTED = enum.auto()


# What `Backend.begin` returns for a batch that goes on after the call.
STARTED: Final = Started.STARTED


class InstanceDied(Unavailable):
    """The instance is gone (its process ended, its device was lost): it must be loaded again to serve."""


class Backend(abc.ABC):
    """One model instance of one framework: one object is loaded, executes batches, and is unloaded.

    All methods are called on the server's Trio loop and must not block it. Subclasses raise
    `trioton.errors.ServerError` with a text that names the model and what to mend; any other exception is reported as
    an internal error of the model with the exception's text.

    Attributes:
        spec: what the instance is to load, and where.
    """

    default_cpu_instance_count: int = 1
    """The number of instances that KIND_CPU gets where the configuration gives no count."""
    can_be_decoupled: bool = False
    """Whether models with `model_transaction_policy { decoupled: true }` can be served."""
    joins_requests: bool = False
    """Whether it joins the requests of a batch into tensors, as `batch_input`, `batch_output` and the model's shape
    rules say. Else it gets requests that are padded already, and what concerns the batch as a whole is refused at
    load."""
    can_run_ahead: bool = False
    """Whether `execute` may be called for the next batch while one runs. Calls are then made in the order in which the
    batches are to run, and each raises or returns for itself."""
    can_overlap: bool = False
    """Whether it may be given a batch while others go on, as `execute_overlapping` says."""
    unload_seconds: float = 10.0
    """How long `unload` may take."""
    model_filename: str = ""
    """What its model file is usually called, for backends from other packages: `trioton repo add` knows files by the
    suffix of this name."""
    settings_from: tuple[str, ...] = ()
    """Other backends whose `--backend-config` settings it takes as well; its own win."""
    prefers_gpu: bool = False
    """Whether a group of KIND_AUTO goes to the GPU where there is one."""
    takes_device_tensors: bool = False
    """Whether instances on a GPU take inputs that lie on a device, on theirs or another, as they are. Others get them
    in host memory. Private."""
    takes_shared_tensors: bool = False
    """Whether it takes inputs that are still in their client's memory, and reads each once. Private."""

    def __init__(self, spec: InstanceSpec) -> None:
        self.spec = spec

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Fill in what the configuration leaves out from the model itself; called where auto-completion is on, before
        any instance is made.

        Returns:
            A new configuration (`msgspec.structs.replace`), or the same.

        Raises:
            ServerError: model and configuration contradict each other.
        """
        return source.config

    @classmethod  # noqa: B027 (not every framework has files that can be judged)
    async def check_model(cls, source: ModelSource) -> None:
        """Judge a model's files against its final configuration, without loading it to serve; for `trioton doctor`.

        Raises:
            ServerError: `load` would fail, as far as can be told from the files.
        """

    @classmethod
    async def model_warnings(cls, source: ModelSource) -> Sequence[str]:
        """What in a model's files lets it load, but is likely to fail when it serves, or to do so with Triton; for
        `trioton doctor`."""
        return ()

    @abc.abstractmethod
    async def load(self) -> None:
        """Make the instance ready to execute; called once, first. Cancelled, as after an error, `unload` follows, and
        must find what is to be freed.

        Raises:
            ServerError: the model cannot be loaded.
        """

    @abc.abstractmethod
    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        """Run one batch. The requests are checked against the configuration and agree in all non-batch shapes, but for
        those of ragged inputs (`allow_ragged_batch`). With `max_batch_size` > 0 the first dimension of every tensor is
        the batch, and the rows of all requests together are no more than that. Outputs are in host memory, but for
        those that the request's `device_outputs` names: these may be device tensors, and are complete.

        Cancelled: the work may go on, but the instance must then be able to take the next batch or raise
        `InstanceDied`.

        Raises:
            ServerError: the whole batch fails with it, as with any other exception.
            InstanceDied: the batch fails, and the instance is unloaded and loaded again.
        """

    async def execute_overlapping(self, requests: Sequence[InferenceRequest], free: Callable[[], None]) -> BatchResult:
        """As `execute`, for an instance with `can_overlap`: `free` is called when the instance can take the next batch
        although this one has not ended."""
        return await self.execute(requests)

    def begin(
        self,
        requests: Sequence[InferenceRequest],
        done: Callable[[BatchResult | Exception], None],
        free: Callable[[], None] | None = None,
    ) -> BatchResult | Started | None:
        """Begin one batch without blocking; called only while `attend` runs. The three answers:

        - its result, where the call itself has computed it;
        - STARTED, where `done` is called later, once, with what `execute` would return or raise;
        - None, the default, where nothing was done: a task then awaits `execute`, or `execute_overlapping`.

        Raises what `execute` would raise. `done` and `free` are those of this batch: `done` is never called before this
        has returned; `free` as in `execute_overlapping`. Once the instance is stopped `done` may be called or not.
        """
        return None

    def cancel(self, request: InferenceRequest) -> None:  # noqa: B027 (most frameworks cannot stop what they have begun)
        """The caller of a request has gone that this instance executes, or answers by its responder. Must not wait. The
        request is to be answered all the same. When all callers of a batch have gone it is called for each of its
        requests, perhaps a second time, and for rows without a request.

        Sequences keep the rows of callers that had gone before their batch began: it is called for these right before
        the batch is given to the backend, and again while it runs."""

    def known_readiness(self) -> bool | None:
        """What `is_ready` would say where that needs no wait, None where the model has to be asked: a probe of many
        models then takes no task for each. Must not wait; may be called at any time."""
        return True if type(self).is_ready is Backend.is_ready else None

    async def is_ready(self) -> bool:
        """Whether the model itself says that it can serve, now that it is loaded and alive; within a bounded time."""
        return True

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """What the instance holds now, as far as its framework can tell, for the statistics. Must not wait; may be
        called at any time, also before `load` and after `unload`."""
        return ()

    def arena_bytes(self) -> int:
        """The bytes of memory that a worker process shares with the server for tensors, for the metrics; 0 for none.
        Must not wait; may be called at any time."""
        return 0

    def queue_room(self) -> QueueRoom | None:
        """What a queue of the instance's own takes before it refuses requests; None for none with bounds. Must not
        wait; may be called at any time."""
        return None

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        """Run one batch of a decoupled model (`can_be_decoupled`); each request has its responder, in order.

        Returns when the instance can take the next batch; responders may be used after that, until each is closed. An
        exception closes those of the batch that are open. Cancelled: as `execute`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decoupled models")

    async def execute_decoupled_overlapping(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder], free: Callable[[], None]
    ) -> BatchTiming:
        """As `execute_decoupled`, for an instance with `can_overlap`. That of a model with sequences returns when the
        batch's steps have ended; `free` is called when the instance can take a batch of others before that."""
        return await self.execute_decoupled(requests, responders)

    @property
    def takes_adapters(self) -> bool:
        """Whether, now that it is loaded, adapters can be added to it. Private."""
        return False

    async def follow_adapter(self, name: str) -> None:
        """Have the adapter of this name as `spec.adapters` says, or without an entry there as the model's files say;
        what uses one that goes ends first. Called for one name at a time. Failed, it may have none of this name, until
        it is called again. Private.

        Raises:
            InvalidArgument: it cannot be used.
            Unavailable: the instance is not loaded, or has died.
        """
        raise Unsupported(f"model '{self.spec.source.name}' has no adapters that can be changed while it is loaded")

    @property
    def sleep_level(self) -> int:
        """0 while it is awake; else what `sleep` was called with. Private."""
        return 0

    @property
    def can_sleep(self) -> bool:
        """Whether it can give its memory back and stay loaded. Private."""
        return False

    async def sleep(self, level: int) -> None:
        """Refuse new requests, wait until those that are here have ended, and give memory back until `wake`. Failed, or
        cancelled, it is awake. Private.

        Raises:
            Unavailable: the instance is not loaded, or has died.
        """
        raise Unsupported(f"model '{self.spec.source.name}' cannot sleep")

    async def wake(self) -> None:
        """End the sleep; returns when it takes requests again. Failed, or cancelled, it still sleeps. Private."""
        raise Unsupported(f"model '{self.spec.source.name}' cannot sleep")

    async def reset_prefix_cache(self) -> None:
        """Forget the prefixes of prompts that are kept for later requests. Private."""
        raise Unsupported(f"model '{self.spec.source.name}' has no prefix cache")

    def death_text(self) -> str:
        """How the instance has died, for people; empty where nothing is known. Private."""
        return ""

    async def wait_died(self) -> None:
        """Sleep until the instance has died by itself, then return. The default never returns."""
        await trio.sleep_forever()

    async def attend(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what is to be done beside the calls while the instance is loaded; return when it has died by itself.

        Started when it may execute; cancelled before it is unloaded.
        """
        task_status.started()
        await self.wait_died()

    async def unload(self) -> None:  # noqa: B027 (many frameworks have nothing to free)
        """Free everything, also after a failed load or a death. Called once, shielded, within a bounded time."""

    def retire(self) -> None:  # noqa: B027 (few keep anything)
        """Let go of what was kept beyond `unload` for an instance of the same name that would be started after a death,
        as counters are: none will be. Called once, last, on the latest object of an instance. Must not wait."""
