"""A served model in a test: its inference calls and their results.

Flow: test → [models] → core → scheduler → model instance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack

import numpy as np
import trio
from numpy.typing import ArrayLike, NDArray

from actors.core.server_core import ServerCore
from protocol.core import ModelStatistics
from protocol.datatypes import DataType
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor

Inputs: TypeAlias = Mapping[str, ArrayLike]
"""Arrays by the names of a model's inputs."""
T = TypeVar("T")

# Exceptions of models that are remembered, to be shown as the cause of a request's error.
_MOST_FAILURES = 64


class RequestFields(TypedDict, total=False):
    """What a request may carry beside its inputs, as keyword arguments.

    Attributes:
        outputs: the names of the outputs that are wanted; all where absent.
        id: the request's id, which the answer repeats.
        parameters: the client's own.
        priority: the level in the queue, 1 for the first; 0 for the model's default.
        timeout_microseconds: how long it may wait in the queue, or where no queue policy takes it, take in all; 0 for
            no limit.
        sequence_id: the sequence that it belongs to; 0 or the empty text for none.
        sequence_start: whether it is the first of its sequence.
        sequence_end: whether it is the last one.
    """

    outputs: Sequence[str]
    id: str
    parameters: dict[str, ParameterValue]
    priority: int
    timeout_microseconds: int
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool


class Answer(dict[str, NDArray[Any]]):
    """The outputs of one response by name, and what else it carries.

    The arrays have the shape that the model has given, batch dimension included; those of BYTES hold `bytes` objects.
    They are views of what the model gave, and must not be written to.

    Attributes:
        parameters: those of the response.
        request_id: the id of the request.
        model_version: the version that has answered.
    """

    def __init__(self, response: InferenceResponse) -> None:
        super().__init__((tensor.name, tensor.as_numpy()) for tensor in response.outputs)
        self.parameters: Mapping[str, ParameterValue] = dict(response.parameters)
        self.request_id = response.id
        self.model_version = response.model_version


@dataclass(frozen=True, slots=True)
class Failures:
    """The last exceptions that models have raised, with their tracebacks."""

    raised: deque[BaseException] = field(default_factory=lambda: deque(maxlen=_MOST_FAILURES))

    def cause_of(self, error: ServerError) -> BaseException | None:
        """The exception that an error's text tells of. Where that one's text tells of another, as of a model that it
        has called, the other is its cause."""
        found: list[BaseException] = []
        text = str(error)
        for failure in reversed(self.raised):
            if f"{type(failure).__name__}: {failure}" in text:
                found.append(failure)
                text = str(failure)
        for outer, inner in pairwise(found):
            if outer.__cause__ is None and outer.__context__ is None:
                outer.__cause__ = inner
        return found[0] if found else None


class AsyncModel:
    """A model that `open_model` serves, for tests that run on Trio. Its methods may be called by many tasks at once.

    A request's error is raised as `ServerError` (the kinds are in `trioton.errors`), with the exception that the model
    raised as its cause. A call that is cancelled gives its request up: it is taken out of the queue, or its answer is
    dropped when its batch has ended.

    Attributes:
        name: the model's name.
    """

    def __init__(self, core: ServerCore, name: str, failures: Failures) -> None:
        self.name = name
        self._core = core
        self._failures = failures
        self._datatypes = {tensor.name: tensor.datatype for tensor in core.model_metadata(name).inputs}

    @property
    def config(self) -> dict[str, Any]:
        """The completed configuration in Triton's JSON form."""
        return self._core.model_config(self.name)

    @property
    def statistics(self) -> ModelStatistics:
        """What a server's statistics extension would say: how many requests and batches there were, and so on."""
        (found,) = self._core.model_statistics(self.name)
        return found

    async def infer(self, inputs: Inputs, **more: Unpack[RequestFields]) -> Answer:
        """The one response to one request.

        Args:
            inputs: arrays by name, batch dimension included where there is one. What is no array becomes one of the
                configured datatype.
            more: what else the request carries, see `RequestFields`.

        Raises:
            ServerError: the request does not fit the model, or the model failed. `Decoupled`, where it may give any
                number of responses: `stream` asks such a model.
        """
        with self._told():
            return Answer(await self._core.infer(self._request(inputs, more)))

    async def infer_many(self, requests: Sequence[Inputs], **more: Unpack[RequestFields]) -> list[Answer | ServerError]:
        """Requests at the same time, so that the scheduler may put them into one batch; answers and errors in their
        places."""
        answers: dict[int, Answer | ServerError] = {}

        async def ask(index: int) -> None:
            try:
                answers[index] = await self.infer(requests[index], **more)
            except ServerError as error:
                answers[index] = error

        async with trio.open_nursery() as nursery:
            for index in range(len(requests)):
                nursery.start_soon(ask, index)
        return [answers[index] for index in range(len(requests))]

    async def stream(self, inputs: Inputs, **more: Unpack[RequestFields]) -> list[Answer]:
        """All responses to one request, as a decoupled model sends them; arguments as of `infer`.

        Raises what the request ended with, also after responses. Cancelled, the model can see that the request is.
        """
        received: list[Answer] = []

        async def respond(response: InferenceResponse) -> None:
            if response.outputs or response.parameters:  # else it says only that it is the last one
                received.append(Answer(response))

        with self._told():
            await self._core.infer_stream(self._request(inputs, more), respond)
        return received

    async def is_ready(self) -> bool:
        """Whether all of its instances are alive."""
        return self._core.is_model_ready(self.name)

    def _request(self, inputs: Inputs, more: RequestFields) -> InferenceRequest:
        named: dict[str, Any] = {**more}
        outputs = tuple(named.pop("outputs", ()))
        tensors = [Tensor.from_numpy(name, self._array(name, value)) for name, value in inputs.items()]
        return InferenceRequest(self.name, tensors, requested_outputs=outputs, **named)

    def _array(self, name: str, value: ArrayLike) -> NDArray[Any]:
        if isinstance(value, np.ndarray):
            return value.astype(np.object_) if value.dtype.kind == "U" else value
        datatype = self._datatypes.get(name)
        return np.array(value, dtype=None if datatype is None else DataType[datatype].dtype)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except ServerError as error:
            raise error from self._failures.cause_of(error)


class Model:
    """A model that `serve_model` serves, as `AsyncModel`: each method waits, and may be called from any thread.

    Attributes:
        name: the model's name.
    """

    def __init__(self, model: AsyncModel, token: trio.lowlevel.TrioToken) -> None:
        self._model = model
        self._token = token
        self.name = model.name

    @property
    def config(self) -> dict[str, Any]:
        """As `AsyncModel.config`."""
        return trio.from_thread.run_sync(lambda: self._model.config, trio_token=self._token)

    @property
    def statistics(self) -> ModelStatistics:
        """As `AsyncModel.statistics`."""
        return trio.from_thread.run_sync(lambda: self._model.statistics, trio_token=self._token)

    def infer(self, inputs: Inputs, **more: Unpack[RequestFields]) -> Answer:
        """As `AsyncModel.infer`."""
        return self._wait(partial(self._model.infer, inputs, **more))

    def infer_many(self, requests: Sequence[Inputs], **more: Unpack[RequestFields]) -> list[Answer | ServerError]:
        """As `AsyncModel.infer_many`."""
        return self._wait(partial(self._model.infer_many, requests, **more))

    def stream(self, inputs: Inputs, **more: Unpack[RequestFields]) -> list[Answer]:
        """As `AsyncModel.stream`."""
        return self._wait(partial(self._model.stream, inputs, **more))

    def is_ready(self) -> bool:
        """As `AsyncModel.is_ready`."""
        return self._wait(self._model.is_ready)

    def _wait(self, work: Callable[[], Awaitable[T]]) -> T:
        return trio.from_thread.run(work, trio_token=self._token)
