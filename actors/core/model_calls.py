"""Model calls (BLS): inference and model control on behalf of models (`backends.services.ModelCaller`).

Flow: model instance → backend → [model calls] → model → …, in a task of the backend's. A call goes the same way as a
client's request: it is scheduled, batched, counted and cached. Calls that accepted requests make are answered also
while the server drains.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

from actors.lifecycle.manager import ModelManager
from actors.model.call_waits import CallWaits, EndlessWait, SharedResources, WaitingCall
from actors.model.servable import Servable
from backends.services import CallRefused, Execution, ModelNotReady
from protocol.core import LoadParameters, Respond
from protocol.errors import ServerError, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse

T = TypeVar("T")


class ModelCalls:
    """Implements `backends.services.ModelCaller` for the models that `manager` answers. `resources` are what their
    instances share, where that is limited."""

    def __init__(self, manager: Callable[[], ModelManager], resources: SharedResources | None = None) -> None:
        self._manager = manager
        self._waits = CallWaits(resources)

    async def infer(self, request: InferenceRequest, caller: Execution | None = None) -> InferenceResponse:
        async with self._leased(request):
            model = self._called(request, caller)
            return await _told_apart(model, request, model.infer(request))

    async def infer_stream(self, request: InferenceRequest, respond: Respond, caller: Execution | None = None) -> bool:
        async with self._leased(request):
            model = self._called(request, caller)
            return await _told_apart(model, request, model.infer_stream(request, respond))

    def is_decoupled(self, name: str, version: int) -> bool:
        return self._find(name, version).is_decoupled

    async def is_model_ready(self, name: str, version: int) -> bool:
        try:
            model = self._find(name, version)
        except ModelNotReady:
            return False
        return await model.check_ready()

    async def load_model(self, name: str, parameters: LoadParameters, *, loading: str = "") -> None:
        manager = self._loads()
        with manager.load_for(loading, name):
            await manager.load(name, parameters)

    async def unload_model(self, name: str, *, unload_dependents: bool = False, loading: str = "") -> None:
        manager = self._loads()
        with manager.load_for(loading, name):
            await manager.unload(name, unload_dependents=unload_dependents)

    def _leased(self, request: InferenceRequest) -> AbstractAsyncContextManager[None]:
        """Within this block, the called model is not evicted for the memory budget."""
        residence = self._manager().residence
        if residence is None:
            return nullcontext()
        self._find(request.model_name, request.model_version)
        return residence.lease(request, is_nested=True)

    def _called(self, request: InferenceRequest, caller: Execution | None) -> Servable:
        model = self._find(request.model_name, request.model_version)
        if caller is not None:
            request.caller = WaitingCall(self._waits, caller)
        return model

    def _find(self, name: str, version: int) -> Servable:
        try:
            return self._manager().find(name, version)
        except ServerError as error:
            raise ModelNotReady(error.message) from None

    def _loads(self) -> ModelManager:
        """Raises Unavailable while the server itself is starting."""
        manager = self._manager()
        if not manager.is_started:
            raise Unavailable("models can be loaded and unloaded by a model when the server has started, not before")
        return manager


async def _told_apart(model: Servable, request: InferenceRequest, answer: Awaitable[T]) -> T:
    """The answer; an error of the request itself as `CallRefused`, one of the model as it is."""
    try:
        return await answer
    except EndlessWait as error:
        raise CallRefused(error) from None
    except ServerError:
        try:
            model.check(request)
        except ServerError as refusal:
            raise CallRefused(refusal) from None
        raise
