"""Runs items of jobs that are inference requests, on the models of the core, at the lowest priority that they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from actors.jobs.background import BackgroundRequests
from actors.jobs.responses import all_responses
from protocol.core import ModelMetadata, Respond
from protocol.errors import NotFound, Unavailable
from protocol.jobs.execution import ModelLoad, Partial
from protocol.jobs.model_inputs import ModelInputs
from protocol.jobs.payload import decode_request, encode_responses
from protocol.messages import Buffer, InferenceRequest, InferenceResponse
from protocol.quotas.accounts import Account


class JobCore(Protocol):
    """What jobs need of the core. The first five are those of `protocol.core.InferenceCore`."""

    def is_decoupled(self, name: str, version: int) -> bool: ...

    async def infer(self, request: InferenceRequest) -> InferenceResponse: ...

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool: ...

    def model_metadata(self, name: str, version: int) -> ModelMetadata: ...

    def model_config(self, name: str, version: int) -> dict[str, Any]: ...

    def lowest_priority(self, name: str, version: int) -> int:
        """The last of the model's priority levels; 0 where it has none."""
        ...

    def load_of(self, name: str) -> ModelLoad:
        """How busy a model is; never raises."""
        ...


class InferenceExecutor:
    """Implements `protocol.jobs.execution.JobExecutor` and `actors.jobs.transfer.RowModels`."""

    def __init__(
        self,
        core: JobCore,
        account: Callable[[str], Account | None] = lambda _: None,
        background: BackgroundRequests | None = None,
    ) -> None:
        """`account` gives that of a key, by its name, where there are keys. With `background` requests to models of
        known capacity wait there for room beside live ones; all others run at once."""
        self._core = core
        self._account = account
        self._background = background

    async def run(self, owner: str, request: Buffer, partial: Partial) -> Sequence[Buffer]:
        inference = decode_request(request)
        name, version = inference.model_name, inference.model_version
        try:
            inference.priority = self._core.lowest_priority(name, version)
            is_decoupled = self._core.is_decoupled(name, version)
        except NotFound as error:  # it was there when the job was made, and may be loaded again
            raise Unavailable(error.message) from None
        account = self._account(owner)
        if account is not None:
            inference.charge = account.resume(name)
        try:
            if is_decoupled:
                return encode_responses(await all_responses(self._core, inference, partial))
            return encode_responses([await self.infer(inference)])
        finally:
            if inference.charge is not None:
                inference.charge.end()

    def load_of(self, model: str) -> ModelLoad:
        """Where live requests are heeded here, without them, and with those that wait here."""
        load = self._core.load_of(model)
        return ModelLoad(0, 2 * load.capacity) if load.capacity and self._background is not None else load

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """On a model that answers once, beside its live requests."""
        if self._background is None or not self._core.load_of(request.model_name).capacity:
            return await self._core.infer(request)
        return await self._background.infer(request)

    def inputs_of(self, model: str, version: int) -> ModelInputs:
        try:
            metadata, config = self._core.model_metadata(model, version), self._core.model_config(model, version)
        except NotFound as error:  # as in `run`
            raise Unavailable(error.message) from None
        inputs = [(each.name, each.datatype, each.shape) for each in metadata.inputs]
        return ModelInputs(model, inputs, is_batched=config.get("max_batch_size", 0) > 0)

    def admit_row(self, owner: str, model: str, size: int) -> None:
        account = self._account(owner)
        if account is not None:
            charge = account.admit(model, size)
            charge.goes_on = True  # it is counted when it runs
            charge.end()
