"""The contents of the module that models import as `triton_python_backend_utils`.

Names and texts are those of Triton's Python backend.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from .bls import ResponseIterator
from .errors import (
    TritonError,
    TritonModelException,
)
from .logger import Logger
from .metrics import Metric, MetricFamily, MetricKind
from .model_config import ModelConfig
from .models import get_model_dir, is_model_ready, load_model, unload_model
from .preferred_memory import MemoryType, PreferredMemory
from .records import RELEASE_ALL, RELEASE_RESCHEDULE
from .requests import InferenceRequest, get_input_tensor_by_name
from .responses import InferenceResponse, get_output_tensor_by_name
from .senders import COMPLETE_FINAL, InferenceResponseSender
from .tensors import (
    NUMPY_TYPES,
    TYPE_NAMES,
    Tensor,
    decode_elements,
    encode_elements,
)
from .trace import InferenceTrace

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = COMPLETE_FINAL
TRITONSERVER_REQUEST_RELEASE_ALL = RELEASE_ALL
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = RELEASE_RESCHEDULE
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU

TRITON_STRING_TO_NUMPY: dict[str, type] = {name: NUMPY_TYPES[number] for name, number in TYPE_NAMES.items()}
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The input's entry in the configuration."""
    return _by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The output's entry in the configuration."""
    return _by_name(model_config.get("output", ()), name)


def _by_name(tensors: Any, name: str) -> dict[str, Any] | None:
    return next((tensor for tensor in tensors if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> type:
    """`"TYPE_FP32"` → numpy.float32. Raises KeyError for what numpy has no type for."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> type | None:
    """The numpy type of a DataType number."""
    return NUMPY_TYPES.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The DataType number of a numpy type, or of its dtype."""
    for number, kind in NUMPY_TYPES.items():
        if data_type == kind:
            return number
    return TYPE_NAMES["TYPE_STRING"] if data_type == np.bytes_ else None


def serialize_byte_tensor(input_tensor: Any) -> bytes | tuple[()] | None:
    """The elements, each with its length before it (4 bytes, little-endian); None for other dtypes."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return encode_elements(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Any:
    """The reverse: a 1-D array of bytes objects."""
    return decode_elements(encoded_tensor)


# What Triton's extension module has besides; models get at some of it there, and at all of it by objects.
EXTENSION = {
    "InferenceRequest": InferenceRequest,
    "InferenceResponse": InferenceResponse,
    "InferenceResponseSender": InferenceResponseSender,
    "InferenceTrace": InferenceTrace,
    "Logger": Logger,
    "MemoryType": MemoryType,
    "Metric": Metric,
    "MetricFamily": MetricFamily,
    "MetricKind": MetricKind,
    "PreferredMemory": PreferredMemory,
    "ResponseIterator": ResponseIterator,
    "TRITONSERVER_MEMORY_CPU": TRITONSERVER_MEMORY_CPU,
    "TRITONSERVER_MEMORY_GPU": TRITONSERVER_MEMORY_GPU,
    "Tensor": Tensor,
    "TritonError": TritonError,
    "TritonModelException": TritonModelException,
    "is_model_ready": is_model_ready,
    "load_model": load_model,
    "unload_model": unload_model,
}

# With the modules that Triton's imports: models use `pb_utils.np`, and `from … import *` brings them along.
__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "json",
    "load_model",
    "np",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "struct",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]
