"""Requests for the sums, made once, with the bytes that their answers end with."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import numpy as np
from tritonclient.grpc import service_pb2

ELEMENTS = 16
# So that an answer that went to another request's caller is seen.
DIFFERENT = 512


@dataclass(frozen=True, slots=True)
class Sum:
    """`http` is a body of JSON and binary tensors, `message` a ModelInferRequest; `outputs` both outputs' bytes."""

    http: bytes
    header_length: int
    message: bytes
    outputs: tuple[bytes, bytes]


def make_sums(model: str, seed: int) -> list[Sum]:
    numbers = random.Random(seed)
    return [_make(model, numbers) for _ in range(DIFFERENT)]


def _make(model: str, numbers: random.Random) -> Sum:
    left, right = (
        np.array([numbers.randrange(-1000, 1000) for _ in range(ELEMENTS)], dtype=np.float32) for _ in range(2)
    )
    inputs = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": [1, ELEMENTS],
            "parameters": {"binary_data_size": ELEMENTS * 4},
        }
        for name in ("INPUT0", "INPUT1")
    ]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in (("INPUT0", left), ("INPUT1", right)):
        request.inputs.add(name=name, datatype="FP32", shape=[1, ELEMENTS])
        request.raw_input_contents.append(array.tobytes())
    total, difference = left + right, left - right
    if model == "chain":
        total, difference = total + difference, total - difference
    return Sum(
        text + left.tobytes() + right.tobytes(),
        len(text),
        request.SerializeToString(),
        (total.tobytes(), difference.tobytes()),
    )
