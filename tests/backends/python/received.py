"""Tensors as a worker receives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.python.worker.trioton_worker.connection import Frame, encode_json
from backends.python.worker.trioton_worker.frames import DATATYPE_BYTES, EXECUTE
from backends.python.worker.trioton_worker.packing import read_tensors
from backends.python.worker.trioton_worker.schemas import Schemas
from backends.python.worker.trioton_worker.tensors import Tensor


def received_tensors(name: str, number: int, shape: Sequence[int], memory: Any, *, count: int = 1) -> list[Tensor]:
    """One of each of `count` requests, whose bytes follow each other in the memory. One of BYTES has all of it."""
    schema = encode_json([[name, number, shape]])
    sizes = [len(memory)] if number == DATATYPE_BYTES else []
    frame = Frame(EXECUTE, [len(schema), count, *sizes], schema, {}, memory)
    return [tensor for [tensor] in read_tensors(frame, Schemas(), memory)]


def received_tensor(name: str, number: int, shape: Sequence[int], memory: Any) -> Tensor:
    [tensor] = received_tensors(name, number, shape, memory)
    return tensor
