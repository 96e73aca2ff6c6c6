"""The datatypes: one name for the protocol, one for the configuration, one numpy dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from protocol.datatypes import BY_PROTOCOL_NAME, DataType, from_numpy_dtype

ALL = [t for t in DataType if t is not DataType.INVALID]


@pytest.mark.parametrize(
    ("datatype", "config_name", "number", "itemsize"),
    [
        (DataType.BOOL, "TYPE_BOOL", 1, 1),
        (DataType.UINT8, "TYPE_UINT8", 2, 1),
        (DataType.UINT16, "TYPE_UINT16", 3, 2),
        (DataType.UINT32, "TYPE_UINT32", 4, 4),
        (DataType.UINT64, "TYPE_UINT64", 5, 8),
        (DataType.INT8, "TYPE_INT8", 6, 1),
        (DataType.INT16, "TYPE_INT16", 7, 2),
        (DataType.INT32, "TYPE_INT32", 8, 4),
        (DataType.INT64, "TYPE_INT64", 9, 8),
        (DataType.FP16, "TYPE_FP16", 10, 2),
        (DataType.FP32, "TYPE_FP32", 11, 4),
        (DataType.FP64, "TYPE_FP64", 12, 8),
        (DataType.BYTES, "TYPE_STRING", 13, 0),
        (DataType.BF16, "TYPE_BF16", 14, 2),
    ],
)
def test_names_numbers_and_sizes(datatype: DataType, config_name: str, number: int, itemsize: int) -> None:
    """Both names find the same member, with the schema's number and the wire's element size."""
    assert DataType(config_name) is datatype  # type: ignore[call-arg]  # mypy takes the look-up for a construction
    assert BY_PROTOCOL_NAME[datatype.name] is datatype
    assert (datatype.number, datatype.itemsize) == (number, itemsize)


def test_the_table_of_protocol_names_is_whole() -> None:
    """INVALID belongs to the configuration alone."""
    assert list(BY_PROTOCOL_NAME.values()) == ALL


@pytest.mark.parametrize("datatype", ALL, ids=lambda t: t.name)
def test_numpy_dtypes_lead_back(datatype: DataType) -> None:
    """Each datatype's dtype, in either byte order, is that datatype again."""
    assert from_numpy_dtype(datatype.dtype) is datatype
    assert from_numpy_dtype(datatype.dtype.newbyteorder(">")) is datatype
    if datatype is not DataType.BYTES:
        assert datatype.dtype.itemsize == datatype.itemsize


@pytest.mark.parametrize("dtype", ["U", "U7", "S", "S3", "O"])
def test_strings_are_bytes(dtype: str) -> None:
    assert from_numpy_dtype(np.dtype(dtype)) is DataType.BYTES


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "V4", ml_dtypes.float8_e4m3fn])
def test_other_dtypes_have_none(dtype: object) -> None:
    assert from_numpy_dtype(np.dtype(dtype)) is None  # type: ignore[call-overload]  # any dtype-like, on purpose


def test_members_are_keys() -> None:
    """The cheap hash keeps members usable as keys."""
    assert {t: t.name for t in DataType}[DataType.BF16] == "BF16"
