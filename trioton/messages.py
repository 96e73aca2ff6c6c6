"""Public: tensors, the inference request and the inference response.

They know no wire format. A request names its model and carries its input tensors; a response carries the outputs of one
model version. Tensors are views wherever they can be, so neither a tensor's `data` nor an array made of it may be
written to.

Fields of `InferenceRequest` that its docstring calls the server's own, and the attributes of these classes that are not
described, are private: leave them at their defaults.
"""

from __future__ import annotations

from protocol.datatypes import DataType
from protocol.messages import (
    LATEST_VERSION,
    Buffer,
    InferenceRequest,
    InferenceResponse,
    ParameterValue,
    Tensor,
    decode_bytes_elements,
    encode_bytes_elements,
)

__all__ = [
    "LATEST_VERSION",
    "Buffer",
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "ParameterValue",
    "Tensor",
    "decode_bytes_elements",
    "encode_bytes_elements",
]
