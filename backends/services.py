"""Interfaces through which a backend's models call back: inference on other models, model control, custom metrics.

`actors` implements these; a backend gets them with its `ModelSource`, and never sees more of the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from protocol.core import LoadParameters, Respond
from protocol.errors import ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.gen_ai import GenAi
from protocol.media.fetcher import MediaFetcher
from protocol.messages import InferenceRequest, InferenceResponse

MetricKind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(eq=False, slots=True)
class Execution:
    """A batch that an instance runs, as the caller of other models.

    Until it ends (`is_running` false) it takes one of the `concurrency` places of its instance. `source` is the
    instance's `ModelSource`, by which a model knows its own.
    """

    source: object
    model_name: str
    instance_name: str
    concurrency: int = 1
    is_running: bool = True


class ModelNotReady(Unavailable):
    """The called model, or that version of it, does not serve."""


class CallRefused(ServerError):
    """A request that the called model never gets; `error` says why, and of what kind that is."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(error.message)
        self.error = error


class ModelCaller(Protocol):
    """The server's models, called by a model.

    Raises `ModelNotReady`, `CallRefused`, and whatever error the called model gives. Calls end with their cancel scope.
    """

    async def infer(self, request: InferenceRequest, caller: Execution | None = None) -> InferenceResponse:
        """Run a request on a model that gives exactly one response.

        `caller` waits for the answer: a call that could never be answered, because the called model's instances all
        wait for their callers to end, is refused.
        """

    async def infer_stream(self, request: InferenceRequest, respond: Respond, caller: Execution | None = None) -> bool:
        """Run a request on any model, as `protocol.core.InferenceCore.infer_stream`."""

    def is_decoupled(self, name: str, version: int) -> bool: ...

    async def is_model_ready(self, name: str, version: int) -> bool:
        """Whether it serves; False also for one that the server does not know."""

    async def load_model(self, name: str, parameters: LoadParameters, *, loading: str = "") -> None:
        """Returns when the load has ended. `loading` is the model that asks for it while it is itself being loaded."""

    async def unload_model(self, name: str, *, unload_dependents: bool = False, loading: str = "") -> None:
        """Returns when unloading has begun."""


class CustomMetric(Protocol):
    """One value, shared by all who hold it. The backend checks that the kind can do what is asked."""

    def increment(self, value: float) -> None: ...

    def set(self, value: float) -> None: ...

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, `count` times."""

    def value(self) -> float: ...

    def close(self) -> None:
        """Let go of it; it vanishes with its last holder. Closing twice does nothing."""


class CustomMetricFamily(Protocol):
    """A metric by its name, shared by all who hold it."""

    def metric(self, labels: Mapping[str, str], buckets: Sequence[float]) -> CustomMetric:
        """The metric with these labels. Raises `ServerError` where labels or buckets cannot be."""

    def close(self) -> None:
        """Let go of it; it vanishes with its last holder. Closing twice does nothing."""


class CustomMetrics(Protocol):
    """The metrics of one server that its models define."""

    def family(self, name: str, description: str, kind: MetricKind, *, is_own: bool = False) -> CustomMetricFamily:
        """The family of this name. Raises `ServerError` where it cannot be, or is of another kind. `is_own` is for the
        server's own backends, which may use names that models may not."""


@dataclass(frozen=True, slots=True)
class BackendServices:
    """`failures` counts defects of callbacks; `gen_ai` is there if calls of generative models are to be observed,
    `media` if what clients name by URLs may be fetched."""

    models: ModelCaller
    metrics: CustomMetrics
    failures: CallbackFailures = field(default_factory=CallbackFailures)
    gen_ai: GenAi | None = None
    media: MediaFetcher | None = None
