"""`InferenceRequest`: one received from the server, or made by the model for a BLS call."""

from __future__ import annotations

import json
from typing import Any, Awaitable, Sequence, TypeVar

from . import bls
from .arguments import DEFAULT, INT64, UINT32, UINT64, to_bool, to_integer, to_sequence, to_text
from .errors import TritonModelException
from .preferred_memory import PreferredMemory
from .responses import Parameters, checked_parameters
from .senders import InferenceResponseSender, Reply, is_cancelled
from .session import LiveBatch
from .tensors import Tensor
from .trace import InferenceTrace

RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2

_Kind = TypeVar("_Kind")


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

    # Arguments that have no default; those before them have one, as Triton has it.
    _REQUIRED = ("inputs", "requested_output_names", "model_name")

    _batch: LiveBatch | None
    _inputs: list[Tensor]
    _preferred_memory: PreferredMemory | None
    _reply: Reply | None
    _requested_output_names: set[str] | frozenset[str]
    # Of a request from the server: its context as JSON text. Of one made here: the trace that it was given.
    _trace: str | InferenceTrace | None

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = DEFAULT,
        requested_output_names: Sequence[str] = DEFAULT,
        model_name: str = DEFAULT,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = DEFAULT,
        trace: InferenceTrace = DEFAULT,
        parameters: Parameters | None = None,
    ) -> None:
        if inputs is DEFAULT or requested_output_names is DEFAULT or model_name is DEFAULT:
            given = (inputs, requested_output_names, model_name)
            left_out = [name for name, value in zip(self._REQUIRED, given) if value is DEFAULT]
            raise TypeError(f"InferenceRequest: missing required arguments: {', '.join(left_out)}")
        self._request_id = request_id = to_text(request_id, "InferenceRequest: request_id")
        self._correlation_id = _checked_correlation(correlation_id)
        self._model_name = model_name = to_text(model_name, "InferenceRequest: model_name")
        self._model_version = to_integer(model_version, "InferenceRequest: model_version", INT64)
        self._flags = to_integer(flags, "InferenceRequest: flags", UINT32)
        self._timeout = to_integer(timeout, "InferenceRequest: timeout", UINT64)
        self._preferred_memory = (
            None if preferred_memory is DEFAULT else _checked("preferred_memory", preferred_memory, PreferredMemory)
        )
        self._trace = None if trace is DEFAULT else _checked("trace", trace, InferenceTrace)
        who = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        self._inputs = list(to_sequence(inputs, "InferenceRequest: inputs", "Tensor"))
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException(f"Input tensor {who}")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"InferenceRequest: inputs must hold Tensor, found type {type(tensor)}")
        names = to_sequence(requested_output_names, "InferenceRequest: requested_output_names", "str")
        self._requested_output_names = {
            to_text(name, "InferenceRequest: each of requested_output_names") for name in names
        }
        if "" in self._requested_output_names:
            raise TritonModelException(f"Requested output name {who}")
        self._parameters = {} if parameters is None else checked_parameters(parameters)
        self._batch = None
        self._index = 0
        self._reply = None
        self._release_flags = RELEASE_ALL

    def inputs(self) -> list[Tensor]:
        return list(self._inputs)

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        """The sequence flags, or-ed."""
        return self._flags

    def set_flags(self, flags: int, /) -> None:
        self._flags = to_integer(flags, "InferenceRequest.set_flags: flags", UINT32)

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

    def set_release_flags(self, flags: int, /) -> None:
        """With TRITONSERVER_REQUEST_RELEASE_RESCHEDULE the request is to run again, in one of the next batches, and
        `execute` returns None for it; only for models with `sequence_batching.iterative_sequence`."""
        flags = to_integer(flags, "InferenceRequest.set_release_flags: flags", UINT32)
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
        return bls.execute(self, to_bool(decoupled, "InferenceRequest.exec: decoupled"))

    def async_exec(self, decoupled: bool = False) -> Awaitable[Any]:
        """As `exec`, to be awaited. It begins at once; a running event loop is needed."""
        result: Awaitable[Any] = bls.async_execute(self, to_bool(decoupled, "InferenceRequest.async_exec: decoupled"))
        return result

    def _open_reply(self) -> Reply | None:
        if self._reply is None and self._batch is not None:
            self._reply = Reply(self._batch, self._index, self._requested_output_names)
        return self._reply


def _checked(name: str, value: Any, kind: type[_Kind]) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"InferenceRequest: {name} must be {kind.__name__}, found type {type(value)}")
    return value


def _checked_correlation(correlation_id: object) -> int | str:
    if isinstance(correlation_id, int):
        return to_integer(correlation_id, "InferenceRequest: correlation_id", UINT64)
    if isinstance(correlation_id, str):
        return to_text(correlation_id, "InferenceRequest: correlation_id")
    raise TritonModelException("Correlation ID must be integer or string")
