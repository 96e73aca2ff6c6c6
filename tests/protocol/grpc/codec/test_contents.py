"""Typed contents into the raw layout, for every datatype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.grpc.codec.contents import encode_contents
from protocol.proto import message_class


def contents(**fields: list[Any]) -> Any:
    return message_class("inference.InferTensorContents")(**fields)


GOOD: list[tuple[DataType, str, list[Any], bytes]] = [
    (DataType.BOOL, "bool_contents", [True, False, True], b"\1\0\1"),
    (DataType.INT8, "int_contents", [-1, 2, 127], b"\xff\2\x7f"),
    (DataType.INT16, "int_contents", [-2, 258], b"\xfe\xff\2\1"),
    (DataType.INT32, "int_contents", [-1, 1], b"\xff\xff\xff\xff\1\0\0\0"),
    (DataType.INT64, "int64_contents", [-1], b"\xff" * 8),
    (DataType.UINT8, "uint_contents", [0, 255], b"\0\xff"),
    (DataType.UINT16, "uint_contents", [65535, 1], b"\xff\xff\1\0"),
    (DataType.UINT32, "uint_contents", [2**32 - 1], b"\xff" * 4),
    (DataType.UINT64, "uint64_contents", [2**64 - 1], b"\xff" * 8),
    (DataType.FP32, "fp32_contents", [1.0, -2.0], b"\0\0\x80\x3f\0\0\0\xc0"),
    (DataType.FP64, "fp64_contents", [1.0], b"\0\0\0\0\0\0\xf0\x3f"),
    (DataType.BYTES, "bytes_contents", [b"ab", b"", b"\0"], b"\2\0\0\0ab\0\0\0\0\1\0\0\0\0"),
]


@pytest.mark.parametrize(("datatype", "field", "values", "raw"), GOOD)
def test_each_datatype_has_its_field(datatype: DataType, field: str, values: list[Any], raw: bytes) -> None:
    assert encode_contents(contents(**{field: values}), "x", datatype, "m") == raw


@pytest.mark.parametrize(
    ("datatype", "field", "value", "raw"),
    [
        (DataType.INT8, "int_contents", 300, b"\x2c"),
        (DataType.INT16, "int_contents", 2**16 + 5, b"\5\0"),
        (DataType.UINT8, "uint_contents", 256, b"\0"),
        (DataType.UINT16, "uint_contents", 2**32 - 1, b"\xff\xff"),
    ],
)
def test_narrow_integers_are_cut_to_their_width(datatype: DataType, field: str, value: int, raw: bytes) -> None:
    assert encode_contents(contents(**{field: [value]}), "x", datatype, "m") == raw


@pytest.mark.parametrize("datatype", [datatype for datatype in DataType if datatype is not DataType.INVALID])
def test_no_elements_are_an_empty_tensor(datatype: DataType) -> None:
    assert encode_contents(contents(), "x", datatype, "m") == b""


MISMATCHES: list[tuple[DataType, str, Any, str]] = [
    (DataType.FP32, "int_contents", 1, "of type 'INT32', expected datatype 'FP32'"),
    (DataType.INT32, "fp32_contents", 1.0, "of type 'FP32', expected datatype 'INT32'"),
    (DataType.INT64, "int_contents", 1, "of type 'INT32', expected datatype 'INT64'"),
    (DataType.UINT8, "int_contents", 1, "of type 'INT32', expected datatype 'UINT8'"),
    (DataType.BYTES, "uint64_contents", 1, "of type 'UINT64', expected datatype 'BYTES'"),
    (DataType.FP16, "fp32_contents", 1.0, "of type 'FP32', expected datatype 'FP16'"),
    (DataType.BF16, "bytes_contents", b"a", "of type 'BYTES', expected datatype 'BF16'"),
]


@pytest.mark.parametrize(("datatype", "field", "value", "message"), MISMATCHES)
def test_a_field_for_another_datatype_is_refused(datatype: DataType, field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"input tensor 'x' for model 'm' {message}"):
        encode_contents(contents(**{field: [value]}), "x", datatype, "m")


def test_two_fields_are_refused() -> None:
    both = contents(int_contents=[1], fp32_contents=[1.0])
    with pytest.raises(InvalidArgument, match="for input tensor 'x' for model 'm', binary data was already supplied"):
        encode_contents(both, "x", DataType.INT32, "m")


@given(st.lists(st.floats(width=32)))
def test_floats_keep_every_bit(values: list[float]) -> None:
    raw = encode_contents(contents(fp32_contents=values), "x", DataType.FP32, "m")
    np.testing.assert_array_equal(np.frombuffer(raw, "<f4"), np.array(values, "<f4"))
