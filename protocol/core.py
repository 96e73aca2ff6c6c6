"""The interface between the edges and the server (`InferenceCore`), and the records that it returns.

`actors.core.server_core` implements it; the edges never see more of the server than this. Every method raises only
`protocol.errors.ServerError`; calls are cancelled by the caller's cancel scope. A request that is cancelled in that
way, or given up by its handle, is dropped wherever it is.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from protocol.errors import ServerError
from protocol.messages import LATEST_VERSION, Buffer, InferenceRequest, InferenceResponse
from protocol.text.model import TextFacts, TextModel

Respond: TypeAlias = Callable[[InferenceResponse], Awaitable[None]]
"""Takes one response of a stream; awaited before the next one is given, so a slow reader slows its model down."""


class RespondsAtOnce(abc.ABC):
    """A `Respond` that can take responses between its calls too, without a task switch: what one costs otherwise is
    much of what a token costs. Whoever stands between the model and the caller hides it by a `Respond` of its own."""

    @abc.abstractmethod
    async def __call__(self, response: InferenceResponse) -> None:
        """As `Respond`."""

    @abc.abstractmethod
    def respond_at_once(self, response: InferenceResponse) -> bool:
        """Take a response, as a call does; False where it must be awaited, and nothing was taken. It is asked only
        while no call is under way, and no response waits for one. Runs in the model's task: what it raises is as
        False, and the call that follows is to raise it for its caller to see."""


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """What a server says of itself; `extensions` are those of the protocol that it has."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """`datatype` is the protocol's name; `shape` has -1 for variable dimensions, the batch dimension included."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model takes and gives; `versions` are those that serve, or the one that was asked for."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """One entry of the repository index; empty strings stand for what is not known, and for no namespace."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ModelRepository:
    """`names` are those directories of it that are served under another name, with that name."""

    path: str
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatisticDuration:
    """How often something has happened, and how many nanoseconds it has taken in all."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class InferStatistics:
    """Where the requests of a model version have spent their time; the `compute_…` ones count requests, not batches."""

    success: StatisticDuration = StatisticDuration()
    fail: StatisticDuration = StatisticDuration()
    queue: StatisticDuration = StatisticDuration()
    compute_input: StatisticDuration = StatisticDuration()
    compute_infer: StatisticDuration = StatisticDuration()
    compute_output: StatisticDuration = StatisticDuration()
    cache_hit: StatisticDuration = StatisticDuration()
    cache_miss: StatisticDuration = StatisticDuration()


@dataclass(frozen=True, slots=True)
class InferBatchStatistics:
    """The same for batches of one size."""

    batch_size: int
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration


@dataclass(frozen=True, slots=True)
class InferResponseStatistics:
    """Statistics of the responses that had one index within their requests."""

    compute_infer: StatisticDuration = StatisticDuration()
    compute_output: StatisticDuration = StatisticDuration()
    success: StatisticDuration = StatisticDuration()
    fail: StatisticDuration = StatisticDuration()
    empty_response: StatisticDuration = StatisticDuration()
    cancel: StatisticDuration = StatisticDuration()


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory that a model holds. `type` is Triton's: "CPU", "CPU_PINNED" or "GPU"; `id` is the device's."""

    type: str
    id: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class QueueRoom:
    """How much a model's queue takes before it refuses requests, and how much waits in it. 0 stands for no bound;
    `tokens` are those of prompts."""

    requests: int = 0
    waiting_requests: int = 0
    tokens: int = 0
    waiting_tokens: int = 0

    def __add__(self, other: QueueRoom) -> QueueRoom:
        return QueueRoom(
            self.requests + other.requests,
            self.waiting_requests + other.waiting_requests,
            self.tokens + other.tokens,
            self.waiting_tokens + other.waiting_tokens,
        )


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """`last_inference` is in milliseconds since the epoch, 0 for never. `response_stats` is that of a decoupled model,
    by the index of a response among its request's; `memory_usage` has one entry for each type and device."""

    name: str
    version: str
    last_inference: int = 0
    inference_count: int = 0
    execution_count: int = 0
    inference_stats: InferStatistics = InferStatistics()
    response_stats: Mapping[str, InferResponseStatistics] = field(default_factory=dict)
    batch_stats: tuple[InferBatchStatistics, ...] = ()
    memory_usage: tuple[MemoryUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """What a load may override.

    Attributes:
        config: a model configuration as JSON text, in place of `config.pbtxt`.
        files: contents by `<version>/<name>`, in place of the model's files; `config` must then be given.
        within_budget: fail where the memory budget has no room for it, and none can be made, instead of exceeding it.
    """

    config: str | None = None
    files: Mapping[str, Buffer] = field(default_factory=dict)
    within_budget: bool = False


class ReplyChannel(Protocol):
    """A reply channel: the receiver of the only reply to a request."""

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        """Receive the reply. Called by an actor: must not raise, and leaves longer work to others."""


class Submitted(Protocol):
    """The handle of a submitted request. Its submitter calls exactly one of `end` and `give_up`, once. `arrival` is in
    seconds of Trio's clock."""

    @property
    def request(self) -> InferenceRequest: ...

    @property
    def arrival(self) -> float: ...

    def end(self) -> None:
        """The reply was received."""

    def give_up(self) -> None:
        """Cancel the request, in whatever state it is: no answer is given from now on, and what has not begun will
        not."""


class InferenceCore(Protocol):
    """The server, as the edges see it."""

    def is_live(self) -> bool:
        """Whether the server is up. Raises Unavailable `Server exiting` while it stops."""

    def is_ready(self) -> bool:
        """Whether the server takes inference requests (strict readiness: for every model that it was asked for)."""

    def is_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        """Whether a version is loaded and all of its instances' backends are alive."""

    async def check_ready(self) -> bool:
        """As `is_ready`, and under strict readiness every model that defines `is_ready` is asked."""
        ...

    async def check_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        """As `is_model_ready`, also asking a model that defines `is_ready`. Takes a few seconds at most."""
        ...

    def server_metadata(self) -> ServerMetadata: ...

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata: ...

    def model_config(self, name: str, version: int = LATEST_VERSION) -> dict[str, Any]:
        """The completed configuration in its JSON form (snake_case names, enums as names, integers as numbers)."""

    def each_statistics(self, name: str = "", version: int = LATEST_VERSION) -> Iterator[ModelStatistics]:
        """Statistics of one model's version(s), or of all ready models where `name` is empty, by name. Each is made
        when it is asked for, so that there may be a wait in between. What is wrong is raised with the first."""
        ...

    async def repository_index(self, *, ready: bool = False) -> Sequence[ModelIndex]:
        """Lists the repositories afresh, so models that were never loaded are listed too."""
        ...

    async def load_model(self, name: str, parameters: LoadParameters = LoadParameters()) -> None:  # noqa: B008 (frozen)
        """Returns when the load has ended; raises if it failed."""

    async def unload_model(self, name: str, *, unload_dependents: bool = False) -> None:
        """Returns when unloading has begun; requests in flight finish."""

    async def load_adapter(self, name: str, adapter: str, path: str, *, replace: bool = False) -> None:
        """Add an adapter (LoRA) to all instances of a model that serves. `path` is a folder within the model's own,
        from the version's folder on, or an absolute one within those that are allowed. Returns when requests may use
        it; cancelled, it goes on. With `replace` there may be one of this name: what uses that ends first.

        Raises:
            Unsupported: the model has no adapters, or the server takes none.
            NotFound: there is no such model or folder.
            InvalidArgument: the name or path is none that is allowed, or the engine refuses the adapter.
        """

    async def unload_adapter(self, name: str, adapter: str) -> None:
        """Remove an adapter from all instances of a model. New requests for it are refused at once; returns when those
        that use it have ended, and it is gone. Cancelled, it goes on.

        Raises:
            NotFound: there is no such model or adapter.
        """

    def sleeping(self) -> Mapping[str, bool]:
        """Whether they sleep: the models that can, by name."""
        ...

    async def sleep(self, name: str, level: int = 1) -> None:
        """Have a model give its memory back until it is woken. New requests for it are refused at once; returns when
        those that it had have ended, and it sleeps. With level 2 an engine forgets its weights, too, if it tells the
        levels apart. Cancelled, it goes on.

        Raises:
            Unsupported: the model cannot sleep.
            Unavailable: it cannot now, and is awake.
        """

    async def wake(self, name: str) -> None:
        """End a model's sleep; returns when it takes requests. Cancelled, it goes on. Raises as `sleep`; it sleeps
        then."""

    async def reset_prefix_cache(self, name: str) -> None:
        """Have a model's engines forget the prefixes of prompts that they keep. Raises Unsupported, or InvalidArgument:
        it has none."""

    def repositories(self) -> Sequence[ModelRepository]:
        """The registered model repositories."""
        ...

    async def register_repository(self, repository: ModelRepository) -> None:
        """Register a repository; none of its models is loaded by that."""

    async def unregister_repository(self, path: str) -> None:
        """Unregister a repository; those of its models that serve go on."""

    def is_decoupled(self, name: str, version: int = LATEST_VERSION) -> bool:
        """Whether a model answers a request with any number of responses, so that `infer` cannot serve it."""

    def is_batching(self, name: str, version: int = LATEST_VERSION) -> bool:
        """Whether the first dimension of a model's tensors is the batch."""

    def takes_device_tensors(self, name: str, version: int = LATEST_VERSION) -> bool:
        """Whether a model takes inputs on a device (`protocol.tensors.device_tensor`) without a copy to the host."""

    def takes_shared_tensors(self, name: str, version: int = LATEST_VERSION) -> bool:
        """Whether a model takes inputs that are still in their client's memory (`protocol.tensors.shared_tensor`)."""

    def labels(self, name: str, version: int, output: str) -> Sequence[str]:
        """The labels of an output's classes by index; empty where the configuration gives no label file."""

    async def text_model(self, name: str, version: int = LATEST_VERSION) -> TextModel:
        """A model with text in and text out, or with text in and vectors out. Where models are in another process this
        waits until that has told of it, and its tokenizer is made.

        Raises:
            Unsupported: the model is there, and has no text.
            NotHere: only that other process can have its tokenizer.
        """
        ...

    async def text_models(self) -> Sequence[TextFacts]:
        """Those that are ready, each in its latest version, by name."""
        ...

    def queue_room(self, name: str, version: int = LATEST_VERSION) -> QueueRoom | None:
        """What the queue of a model takes; None where it has no bounds.

        Raises:
            NotFound, Unavailable: as `is_decoupled`.
        """
        ...

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Submit a request and wait for its answer. Raises the ServerError that it is answered with; cancelled, the
        request is given up."""

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> Submitted:
        """Run a request on a model that gives exactly one response. Its answer is sent to `reply_to`, and a refusal is
        an answer too: what is wrong with the request, `Decoupled` for a model that gives any number of responses, or
        `Internal` for a defect. Never waits and never raises; what the request has to wait for is waited for by a task
        of the server. With `later` it may wait for `flush`, so that all of a burst share batches.

        A refusal that needs no wait is sent before this returns; other answers may be.
        """

    def flush(self) -> None:
        """Have run what was submitted to wait for this. Who submits so calls it before it waits for anything."""

    def cancel(self, name: str, request_id: str, version: int = LATEST_VERSION) -> int:
        """Stop the requests of this model that have this id and are under way; returns how many were stopped.

        Without a version those of all versions are. Each is then answered with `Cancelled`, unless its answer was
        there already. Raises NotFound where there is neither such a request nor such a model or version that serves.
        """
        ...

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        """Run a request on any model; hand over its responses in order, and return after the last.

        Returns whether the last response was marked final (`InferenceResponse.is_final`). False means that the model
        ended with nothing but a final flag, which a client may ask to be told by an empty response. An error of the
        model is raised, also after responses.
        """
