"""`InferenceRequest`: one that the server has sent, or one that the model makes to call another model."""

from __future__ import annotations

import json
from typing import Any, Awaitable, Sequence

from . import bls
from .errors import TritonModelException
from .responses import Parameters, checked_parameters
from .senders import InferenceResponseSender, Reply, is_cancelled
from .session import LiveBatch
from .tensors import Tensor
from .trace import InferenceTrace

RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2


class PreferredMemory:
    """Where a called model's outputs should be: on the CPU, as without it, or on a GPU, where one can be used."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceRequest:
    """One request. Those made here have no client: nothing can be sent back for them."""

    __slots__ = (
        "_batch",
        "_correlation_id",
        "_flags",
        "_index",
        "_inputs",
        "_model_name",
        "_model_version",
        "_parameters",
        "_preferred_memory",
        "_release_flags",
        "_reply",
        "_request_id",
        "_requested_output_names",
        "_timeout",
        "_trace",
    )

    _batch: LiveBatch | None
    _preferred_memory: PreferredMemory | None
    _reply: Reply | None
    _requested_output_names: set[str] | frozenset[str]
    # Of a request from the server: its context as JSON text. Of one made here: the trace that it was given.
    _trace: str | InferenceTrace | None

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Parameters | None = None,
    ) -> None:
        if isinstance(correlation_id, bool) or not isinstance(correlation_id, (int, str)):
            raise TypeError("Correlation ID must be integer or string")
        is_usual = (
            type(request_id) is type(model_name) is str
            and type(model_version) is type(flags) is type(timeout) is int
            and preferred_memory is None
            and trace is None
        )
        if not is_usual:
            _check_types(request_id, model_name, model_version, flags, timeout, preferred_memory, trace)
        who = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        for tensor in inputs:
            if tensor is None:
                raise TritonModelException(f"Input tensor {who}")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"InferenceRequest: inputs must hold Tensor, found type {type(tensor)}")
        for name in requested_output_names:
            if not name:
                raise TritonModelException(f"Requested output name {who}")
            if not isinstance(name, str):
                raise TypeError(f"InferenceRequest: requested_output_names must hold str, found type {type(name)}")
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._requested_output_names = set(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._parameters = {} if parameters is None else checked_parameters(parameters)
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._batch = None
        self._index = 0
        self._reply = None
        self._release_flags = RELEASE_ALL

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        """The sequence flags, or-ed."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        """In microseconds; 0 means none."""
        return self._timeout

    def parameters(self) -> str:
        """JSON text."""
        return json.dumps(self._parameters)

    def requested_output_names(self) -> set[str]:
        """All outputs where the client listed none."""
        return set(self._requested_output_names)

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return is_cancelled(self._batch, self._index)

    def get_response_sender(self) -> InferenceResponseSender:
        """May be used from any thread, also after `execute` has returned. Whoever holds it must send the final flag."""
        return InferenceResponseSender(self._open_reply(), self._batch, self._index)

    def set_release_flags(self, flags: int) -> None:
        """With TRITONSERVER_REQUEST_RELEASE_RESCHEDULE the request is to run again, in one of the next batches, and
        `execute` returns None for it; only for models with `sequence_batching.iterative_sequence`."""
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException(f"release flags must be {RELEASE_ALL} or {RELEASE_RESCHEDULE}, got {flags}")
        self._release_flags = flags

    def trace(self) -> InferenceTrace:
        if isinstance(self._trace, InferenceTrace):
            return self._trace
        return InferenceTrace(self._batch, self._index, self._trace)

    def exec(self, decoupled: bool = False) -> Any:
        """Run this request on its model, and wait.

        Returns an InferenceResponse, which holds the error if there was one; with `decoupled`, for which any model
        will do, an iterator of them.
        """
        return bls.execute(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Awaitable[Any]:
        """As `exec`, to be awaited. It begins at once; a running event loop is needed."""
        result: Awaitable[Any] = bls.async_execute(self, decoupled)
        return result

    def _open_reply(self) -> Reply | None:
        if self._reply is None and self._batch is not None:
            self._reply = Reply(self._batch, self._index, self._requested_output_names)
        return self._reply


def _check_types(
    request_id: object,
    model_name: object,
    model_version: object,
    flags: object,
    timeout: object,
    preferred_memory: object,
    trace: object,
) -> None:
    for name, value, kinds in (
        ("request_id", request_id, (str,)),
        ("model_name", model_name, (str,)),
        ("model_version", model_version, (int,)),
        ("flags", flags, (int,)),
        ("timeout", timeout, (int,)),
        ("preferred_memory", preferred_memory, (PreferredMemory, type(None))),
        ("trace", trace, (InferenceTrace, type(None))),
    ):
        if not isinstance(value, kinds):
            raise TypeError(f"InferenceRequest: {name} must be {kinds[0].__name__}, found type {type(value)}")
