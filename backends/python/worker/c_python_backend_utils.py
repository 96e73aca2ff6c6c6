"""The name of Triton's extension module, for models that import it: what it holds besides `pb_utils`' own names."""

from trioton_worker.api import (  # type: ignore[import-not-found]  # on the path only in the worker
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    Logger,
    Metric,
    MetricFamily,
    MetricKind,
    ModelConfig,
    PreferredMemory,
    ResponseIterator,
    Tensor,
    TritonError,
    TritonErrorCode,
    TritonModelException,
)

__all__ = [
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonErrorCode",
    "TritonModelException",
]
