"""`InferenceRequest`: one received from the server, or made by the model for a BLS call."""

from __future__ import annotations

import json
from typing import Any, Awaitable, Iterable, Sequence, TypeVar

from . import bls
from .arguments import DEFAULT, INT64, UINT32, UINT64, to_bool, to_integer, to_sequence, to_text
from .errors import TritonModelException
from .preferred_memory import PreferredMemory
from .records import RELEASE_ALL, RELEASE_RESCHEDULE, RequestHeader, RequestRecord
from .responses import Parameters, checked_parameters
from .senders import InferenceResponseSender, is_cancelled
from .tensors import Tensor
from .trace import InferenceTrace

_Kind = TypeVar("_Kind")


class InferenceRequest:
    """One request. Those made here have no client: nothing can be sent back for them."""

    __slots__ = ("_record",)

    # Arguments that have no default; those before them have one, as Triton has it.
    _REQUIRED = ("inputs", "requested_output_names", "model_name")

    _record: RequestRecord

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
        request_id = to_text(request_id, "InferenceRequest: request_id")
        correlation_id = _checked_correlation(correlation_id)
        model_name = to_text(model_name, "InferenceRequest: model_name")
        model_version = to_integer(model_version, "InferenceRequest: model_version", INT64)
        flags = to_integer(flags, "InferenceRequest: flags", UINT32)
        timeout = to_integer(timeout, "InferenceRequest: timeout", UINT64)
        memory = None
        if preferred_memory is not DEFAULT:
            memory = _checked("preferred_memory", preferred_memory, PreferredMemory)
        given_trace = None if trace is DEFAULT else _checked("trace", trace, InferenceTrace)
        who = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        tensors = list(to_sequence(inputs, "InferenceRequest: inputs", "Tensor"))
        for tensor in tensors:
            if tensor is None:
                raise TritonModelException(f"Input tensor {who}")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"InferenceRequest: inputs must hold Tensor, found type {type(tensor)}")
        listed = to_sequence(requested_output_names, "InferenceRequest: requested_output_names", "str")
        names = {to_text(name, "InferenceRequest: each of requested_output_names") for name in listed}
        if "" in names:
            raise TritonModelException(f"Requested output name {who}")
        header = RequestHeader(
            names,
            correlation_id=correlation_id,
            flags=flags,
            timeout=timeout,
            parameters=None if parameters is None else checked_parameters(parameters),
            model_name=model_name,
            model_version=model_version,
            preferred_memory=memory,
            trace=given_trace,
        )
        self._record = RequestRecord(tensors, None, 0, header, request_id)

    def inputs(self) -> list[Tensor]:
        return list(self._record.inputs)

    def request_id(self) -> str:
        return self._record.id

    def correlation_id(self) -> int | str:
        return self._record.header.correlation_id

    def flags(self) -> int:
        """The sequence flags, or-ed."""
        return self._record.header.flags

    def set_flags(self, flags: int, /) -> None:
        record = self._record
        record.header = record.header.with_flags(to_integer(flags, "InferenceRequest.set_flags: flags", UINT32))

    def timeout(self) -> int:
        """In microseconds; 0 means none."""
        return self._record.header.timeout

    def parameters(self) -> str:
        """JSON text."""
        return json.dumps(self._record.header.parameters)

    def requested_output_names(self) -> set[str]:
        """All outputs where the client listed none."""
        return set(self._record.header.output_names)

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return is_cancelled(self._record.batch, self._record.index)

    def get_response_sender(self) -> InferenceResponseSender:
        """May be used from any thread, also after `execute` has returned. Whoever holds it must send the final flag."""
        record = self._record
        return InferenceResponseSender(record.open_reply(), record.batch, record.index)

    def set_release_flags(self, flags: int, /) -> None:
        """With TRITONSERVER_REQUEST_RELEASE_RESCHEDULE the request is to run again, in one of the next batches, and
        `execute` returns None for it; only for models with `sequence_batching.iterative_sequence`."""
        flags = to_integer(flags, "InferenceRequest.set_release_flags: flags", UINT32)
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException(f"release flags must be {RELEASE_ALL} or {RELEASE_RESCHEDULE}, got {flags}")
        self._record.release_flags = flags

    def trace(self) -> InferenceTrace:
        return self._record.inference_trace()

    def exec(self, decoupled: bool = False) -> Any:
        """Run this request on its model, and wait.

        Returns an InferenceResponse, which holds the error if there was one; with `decoupled`, for which any model
        will do, an iterator of them.
        """
        return bls.execute(self._record, to_bool(decoupled, "InferenceRequest.exec: decoupled"))

    def async_exec(self, decoupled: bool = False) -> Awaitable[Any]:
        """As `exec`, to be awaited. It begins at once; a running event loop is needed."""
        is_decoupled = to_bool(decoupled, "InferenceRequest.async_exec: decoupled")
        result: Awaitable[Any] = bls.async_execute(self._record, is_decoupled)
        return result


_new = InferenceRequest.__new__


def model_requests(records: Iterable[RequestRecord]) -> list[InferenceRequest]:
    """The objects that a model gets for them."""
    made = []
    for record in records:
        request = _new(InferenceRequest)
        request._record = record
        made.append(request)
    return made


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The request's input of that name; None where it has none."""
    for tensor in inference_request._record.inputs:
        if tensor._name == name:
            return tensor
    return None


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
