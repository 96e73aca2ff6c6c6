"""The interface between the actors and a framework.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import trio

from backends.devices.devices import Devices
from backends.server_resources import ServerResources
from backends.services import BackendServices
from protocol.core import MemoryUsage
from protocol.errors import Internal, ServerError, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import InstanceKind, ModelConfig, SecondaryDevice


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One version of a model on disk, with its configuration as far as it is known.

    `settings` are the server's `--backend-config` entries for this backend. `model_file` is the default model
    file's path; it may name a directory. `services` are there where the model may call its server. `shared` is where
    a backend keeps what all instances of this load have in common. `devices` gives instances on GPUs their streams.
    """

    name: str
    version: int
    model_directory: Path
    config: ModelConfig
    settings: Mapping[str, str] = field(default_factory=dict)
    services: BackendServices | None = field(default=None, compare=False, repr=False)
    shared: dict[str, object] = field(default_factory=dict, compare=False, repr=False)
    # The model has no version directories: its files lie in its own.
    is_flat: bool = False
    devices: Devices = field(default_factory=Devices, compare=False, repr=False)
    # What backends keep beyond one load, as long as the server lives; None where there is no server.
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
        return self.model_directory if self.is_flat else self.model_directory / str(self.version)

    @property
    def model_file(self) -> Path:
        return self.version_directory / self.config.default_model_filename


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """What one instance is to load, and where. `kind` is CPU, GPU or MODEL (AUTO is resolved before). One that is
    passive is loaded, and executes nothing. Its threads and processes are to run on the `cpu_cores` (see
    `backends.affinity`), if there are any. `profiles` and `secondary_devices` are those of its instance group."""

    source: ModelSource
    name: str
    kind: InstanceKind = InstanceKind.CPU
    device_id: int = 0
    is_passive: bool = False
    cpu_cores: frozenset[int] = frozenset()
    profiles: tuple[str, ...] = ()
    secondary_devices: tuple[SecondaryDevice, ...] = ()

    @property
    def config(self) -> ModelConfig:
        return self.source.config


class BatchTiming(msgspec.Struct, frozen=True):
    """Where a batch's time went, in nanoseconds: gathering inputs, computing, scattering outputs."""

    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


class BatchResult(msgspec.Struct, frozen=True):
    """One entry per request of the batch, in order: its response, or the error that concerns it alone; `Rescheduled`
    for one that is to run again."""

    responses: Sequence[InferenceResponse | ServerError]
    timing: BatchTiming


class Responder(Protocol):
    """The way back of one request to a decoupled model: any number of responses, then the end."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has gone; what is sent then is dropped."""

    async def send(self, response: InferenceResponse) -> None:
        """Give one response; waits while the client is slow to take them. One with `is_final` is the last, and ends
        the request."""

    def send_nowait(self, response: InferenceResponse) -> bool:
        """As `send`, but False instead of waiting; then it was not sent."""

    def close(self, error: ServerError | None = None) -> None:
        """End the request, well or with an error. What comes after is ignored. `Rescheduled`, given before
        `execute_decoupled` returns, ends only this round of it."""


class HeldTensor(Tensor):
    """A state of a sequence that stays where its instance computes (`sequence_batching.state`).

    A backend answers with it and gets it with the next request of the sequence, as it is. Only the instance that made
    it can read it, by `held`, its own; `data` is empty where no client may ask for the output. Who drops it frees the
    memory.
    """

    held: Any = None

    def as_input(self, name: str) -> HeldTensor:
        """The state as the next request has it, under its input's name."""
        return HeldTensor(name, self.datatype, self.shape, b"", self.held)


class Rescheduled(Internal):
    """In place of a response: the request has no answer yet and is to run again, in one of the next batches.

    Only for models with `sequence_batching.iterative_sequence`; a caller of any other model gets it as its error.
    `outputs` are state outputs of this round (`sequence_batching.state`), which the next round gets.
    """

    def __init__(self, outputs: Sequence[Tensor] = ()) -> None:
        super().__init__(
            "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to "
            "handle such a flag."
        )
        self.outputs = outputs


class InstanceDied(Unavailable):
    """The instance is gone (its process ended, its device was lost): it must be loaded again to serve."""


class Backend(abc.ABC):
    """One model instance of one framework.

    Subclasses raise `protocol.errors.ServerError` with a text that names the model and what to mend; any other
    exception is reported as an internal error of the model with the exception's text.
    """

    # The number of instances that KIND_CPU gets where the configuration gives no count.
    default_cpu_instance_count: int = 1
    # Whether models with `model_transaction_policy { decoupled: true }` can be served.
    can_be_decoupled: bool = False
    # Whether it joins the requests of a batch into tensors, as `batch_input`, `batch_output` and the model's shape
    # rules (`backends.padding`) say. Else it gets requests that are padded already, and what concerns the batch as a
    # whole is refused at load.
    joins_requests: bool = False
    # Whether `execute` may be called for the next batch while one runs. Calls are then made in the order in which the
    # batches are to run, and each raises or returns for itself.
    can_run_ahead: bool = False
    # Whether it may be given a batch while others go on, as `execute_overlapping` says.
    can_overlap: bool = False
    # Whether a batch runs without a turn of the loop: then it is told by `cancel`, before the batch that it is given
    # next, of those callers that have gone already.
    runs_at_once: bool = False
    # How long `unload` may take.
    unload_seconds: float = 10.0
    # What its model file is usually called, for backends from other packages: `trioton repo add` knows files by the
    # suffix of this name.
    model_filename: str = ""
    # Other backends whose `--backend-config` settings it takes as well; its own win.
    settings_from: tuple[str, ...] = ()
    # Whether a group of KIND_AUTO goes to the GPU where there is one.
    prefers_gpu: bool = False
    # Whether instances on a GPU take inputs that lie on a device (`protocol.tensors.device_tensor`), on theirs or
    # another, as they are. Others get them in host memory.
    takes_device_tensors: bool = False

    # Whether it takes inputs that are still in their client's memory (`protocol.tensors.shared_tensor`), and reads each
    # once.
    takes_shared_tensors: bool = False

    def __init__(self, spec: InstanceSpec) -> None:
        self.spec = spec

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Fill in what the configuration leaves out from the model itself; called where auto-completion is on.

        Returns a new configuration; raises if model and configuration contradict each other.
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
        """Make the instance ready to execute. Cancellation must leave nothing behind."""

    @abc.abstractmethod
    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        """Run one batch. The requests are checked against the configuration and agree in all non-batch shapes, but for
        those of ragged inputs (`allow_ragged_batch`). Outputs are in host memory, but for those that the request's
        `device_outputs` names: these may be device tensors, and are complete.

        An exception fails the whole batch; `InstanceDied` also ends the instance. If the caller is cancelled the
        work may go on, but the instance must then be able to take the next batch or raise `InstanceDied`.
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
    ) -> bool:
        """As `execute`, or with `free` as `execute_overlapping`, for a batch that needs no task to wait for it, while
        somebody attends (`attend`): `done` is called with what `execute` would return or raise, never before this has
        returned, but where it `runs_at_once`. False, the default, where nothing was done and `execute` is to be called.
        Must not wait, or raise.

        When the instance is stopped before the batch has ended, `done` may be called at any time, or never.
        """
        return False

    def cancel(self, request: InferenceRequest) -> None:  # noqa: B027 (most frameworks cannot stop what they have begun)
        """The caller of a request has gone that this instance executes, or answers by its responder. Must not wait. The
        request is to be answered all the same. When all callers of a batch have gone it is called for each of its
        requests, perhaps a second time, and for rows without a request."""

    async def is_ready(self) -> bool:
        """Whether the model itself says that it can serve, now that it is loaded and alive; within a bounded time."""
        return True

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """What the instance holds now, as far as its framework can tell, for the statistics. Must not wait; may be
        called at any time, also before `load` and after `unload`."""
        return ()

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        """Run one batch of a decoupled model; each request has its responder, in order.

        Returns when the instance can take the next batch; responders may be used after that, until each is closed. An
        exception closes those of the batch that are open.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decoupled models")

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
