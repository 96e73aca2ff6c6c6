"""Failure log entries of gRPC inference calls."""

from __future__ import annotations

from collections.abc import Callable

from protocol.grpc.status import code_of
from protocol.log.failure_log import FailedRequest, FailureLog

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
MODEL_STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
_INFERENCE = {
    MODEL_INFER: "gRPC ModelInfer",
    MODEL_STREAM_INFER: "gRPC ModelStreamInfer",
}


def note_failure(
    log: FailureLog,
    method: str,
    error: Exception,
    describe: Callable[[], FailedRequest] = FailedRequest,
) -> None:
    """Log that a call, or a request in its stream, is answered with an error; nothing where it is no inference."""
    call = _INFERENCE.get(method)
    if call is not None:
        log.note(call, code_of(error).name, error, describe)
