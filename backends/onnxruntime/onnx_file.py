"""Reads from an ONNX file which inputs and outputs have no declared shape, which a session does not report.

A session reports the same empty shape for a scalar and for a tensor of unknown rank. Only the file tells them apart, so
this walks the few protobuf fields that matter (ModelProto.graph = 7; GraphProto.input = 11, output = 12;
ValueInfoProto.name = 1, type = 2; TypeProto.tensor_type = 1; Tensor.shape = 2) and skips all others unread.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

_GRAPH = 7
_GRAPH_INPUT = 11
_GRAPH_OUTPUT = 12
_NAME = 1
_TYPE = 2
_TENSOR_TYPE = 1
_SHAPE = 2


def tensors_without_shape(path: Path) -> frozenset[str]:
    """Names of the graph's inputs and outputs of unknown rank; none if the file is not ONNX (the ORT format)."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        try:
            return frozenset(_walk(view))
        except (ValueError, IndexError, UnicodeDecodeError):
            return frozenset()


def _walk(model: memoryview) -> Iterator[str]:
    for number, graph in _messages(model):
        if number != _GRAPH:
            continue
        for kind, value_info in _messages(graph):
            if kind in (_GRAPH_INPUT, _GRAPH_OUTPUT):
                fields = dict(_messages(value_info))
                type_fields = dict(_messages(fields.get(_TYPE, memoryview(b""))))
                tensor = type_fields.get(_TENSOR_TYPE)
                if tensor is not None and _SHAPE not in dict(_messages(tensor)):
                    yield str(fields[_NAME], "utf-8")


def _messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields of one message, as (field number, contents)."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        match tag & 7:
            case 0:  # varint
                _, position = _varint(data, position)
            case 1:  # 64 bits
                position += 8
            case 2:
                size, position = _varint(data, position)
                if position + size > len(data):
                    raise ValueError("a field ends past its message")
                yield tag >> 3, data[position : position + size]
                position += size
            case 5:  # 32 bits
                position += 4
            case other:
                raise ValueError(f"unknown wire type {other}")


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number is longer than 64 bits")
