"""In-process inference: the models of a server for a program in the same process; public as `trioton.server.Models`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from protocol.core import (
    LoadParameters,
    ModelIndex,
    ModelMetadata,
    ModelStatistics,
    Respond,
    ServerMetadata,
)
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse


class Models(Protocol):
    """The models of a server, called without going through HTTP or gRPC.

    Its methods are called on the server's Trio loop, by any number of tasks at once. They raise `ServerError` and its
    subclasses (`trioton.errors`); `name` is a model's, and `version` -1 stands for its latest version that serves.
    A call ends with its cancel scope, and a cancelled inference leaves nothing behind: the request is taken out of its
    queue, or its answer is dropped when its batch has ended.
    """

    def is_live(self) -> bool:
        """Whether the server is up.

        Raises:
            Unavailable: it is being stopped.
        """

    def is_ready(self) -> bool:
        """Whether the server takes inference requests; under strict readiness, whether every model that it was asked
        for does.

        Raises:
            Unavailable: it is being stopped.
        """

    def is_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        """Whether all instances of a version are alive.

        Raises:
            ServerError: there is no such model or version, or it is not loaded.
        """

    def is_decoupled(self, name: str, version: int = LATEST_VERSION) -> bool:
        """Whether a model gives any number of responses to a request, so that only `infer_stream` can run it.

        Raises:
            ServerError: there is no such model or version, or it does not serve.
        """

    def server_metadata(self) -> ServerMetadata:
        """The server's name, version and protocol extensions."""

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        """A model's versions, and its inputs and outputs with datatypes and shapes.

        Raises:
            ServerError: there is no such model or version, or it does not serve.
        """

    def model_config(self, name: str, version: int = LATEST_VERSION) -> dict[str, Any]:
        """A model's completed configuration in Triton's JSON form, which the caller may change.

        Raises:
            ServerError: there is no such model or version, or it does not serve.
        """

    def model_statistics(self, name: str = "", version: int = LATEST_VERSION) -> Sequence[ModelStatistics]:
        """Statistics of a model's versions, or of all models that serve where `name` is empty; durations are in
        nanoseconds.

        Raises:
            ServerError: there is no such model or version, or it does not serve.
        """

    async def repository_index(self, *, ready: bool = False) -> Sequence[ModelIndex]:
        """All models of the repositories, which are looked at anew, with the states of their versions; with `ready`
        only what serves."""
        ...

    async def load_model(self, name: str, parameters: LoadParameters = LoadParameters()) -> None:  # noqa: B008 (frozen)
        """Load a model, or load it again; returns when its versions serve. The versions that served before do so until
        then, and finish their requests. Cancelled: the load goes on.

        Raises:
            ServerError: the load failed; what served before goes on. Or models are not loaded by calls
                (`model_control_mode` is not explicit).
        """

    async def unload_model(self, name: str, *, unload_dependents: bool = False) -> None:
        """Take no more requests for a model, and unload it when those that it has are finished; returns when that has
        begun. With `unload_dependents` an ensemble's steps go, too.

        Raises:
            ServerError: there is no such model, or models are not unloaded by calls.
        """

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Run a request on a model that gives one response to each.

        Raises:
            Decoupled: the model may give any number of responses.
            ServerError: the request does not fit the model, or the model failed.
        """
        ...

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        """Run a request on any model: `respond` is awaited with each response, in order, and the call returns after the
        last one. A slow `respond` slows the model down.

        Returns:
            Whether the last response was marked as final. False: the model ended its responses without marking one.

        Raises:
            ServerError: as of `infer`, also after responses; what `respond` raises is raised here.
        """
        ...

    def cancel(self, name: str, request_id: str, version: int = LATEST_VERSION) -> int:
        """Cancel the requests of a model that have this id, and say how many there were. Their callers get
        `trioton.errors.Cancelled`. Without a version those of all versions are cancelled.

        Raises:
            NotFound: there is neither such a request nor such a model or version that serves.
        """
        ...
