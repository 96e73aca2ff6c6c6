"""Tensors between numpy and the protocol's raw layout."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import Tensor, decode_bytes_elements, encode_bytes_elements

NUMERIC = [t for t in DataType if t not in (DataType.INVALID, DataType.BYTES)]


@pytest.mark.parametrize("datatype", NUMERIC, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)], ids=str)
def test_numeric_round_trip(datatype: DataType, shape: tuple[int, ...]) -> None:
    """Array to tensor and back gives the same values, dtype and shape, for every datatype."""
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(datatype.dtype).reshape(shape)
    tensor = Tensor.from_numpy("x", array)
    assert (tensor.datatype, tensor.shape, tensor.byte_size) == (datatype, shape, array.size * datatype.itemsize)
    back = tensor.as_numpy()
    assert back.dtype == datatype.dtype
    assert back.shape == shape
    assert back.tobytes() == array.tobytes()


def test_views_are_not_copies_and_not_writable() -> None:
    """A tensor looks at the array's memory, an array at the tensor's; neither may be written through the tensor."""
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = Tensor.from_numpy("x", array)
    view = tensor.as_numpy()
    assert np.shares_memory(array, view)
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(12, dtype=np.int64)[::2],
        np.arange(4, dtype=">i4"),
        np.arange(4, dtype=ml_dtypes.bfloat16)[::-1],
    ],
    ids=["transposed", "strided", "big-endian", "reversed"],
)
def test_other_layouts_are_copied(array: NDArray[Any]) -> None:
    """What is not row-major and little-endian is laid out anew."""
    tensor = Tensor.from_numpy("x", array)
    assert tensor.as_numpy().tolist() == array.tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.array([b"", b"\x00\xff", "größe".encode()], dtype=object),
        np.array(["", "a", "größe"]),
        np.array([b"ab", b"c"]),
        np.array([["x", "y"]], dtype=object),
        np.array("scalar", dtype=object),
    ],
    ids=["bytes", "str", "S", "two dimensions", "scalar"],
)
def test_bytes_round_trip(array: NDArray[Any]) -> None:
    """Strings of any kind become UTF-8 elements; they come back as bytes objects."""
    tensor = Tensor.from_numpy("x", array)
    assert (tensor.datatype, tensor.shape) == (DataType.BYTES, array.shape)
    expected = [e if isinstance(e, bytes) else e.encode() for e in array.reshape(-1).tolist()]
    assert tensor.as_numpy().reshape(-1).tolist() == expected


@given(st.lists(st.binary(max_size=40)))
def test_bytes_elements_round_trip(elements: list[bytes]) -> None:
    raw = encode_bytes_elements(elements)
    assert decode_bytes_elements(raw) == elements
    assert decode_bytes_elements(memoryview(bytearray(raw))) == elements


@given(st.lists(st.binary(min_size=1, max_size=10), min_size=1), st.data())
def test_truncated_bytes_elements_are_refused_or_shorter(elements: list[bytes], data: st.DataObject) -> None:
    """Cut anywhere, the layout gives a prefix of the elements at an element's end and an error elsewhere."""
    raw = encode_bytes_elements(elements)
    cut = data.draw(st.integers(0, len(raw) - 1))
    ends = [len(encode_bytes_elements(elements[:n])) for n in range(len(elements))]
    if cut in ends:
        assert decode_bytes_elements(raw[:cut]) == elements[: ends.index(cut)]
    else:
        with pytest.raises(InvalidArgument):
            decode_bytes_elements(raw[:cut])


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x01\x00", "incomplete string length indicator: expected 4 bytes at offset 0, got 2"),
        (b"\x02\x00\x00\x00a", "string of length 2 at offset 4 extends past the end of the data"),
        (b"\xff\xff\xff\xff", "string of length 4294967295 at offset 4"),
    ],
)
def test_broken_bytes_elements(raw: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        decode_bytes_elements(raw)


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_a_wrong_byte_count_is_refused(size: int) -> None:
    """The sentence names the tensor, what it needs and what it has."""
    tensor = Tensor("x", DataType.FP32, (2,), bytes(size))
    with pytest.raises(InvalidArgument, match=rf"'x' of datatype FP32 and shape \[2\] needs 8 bytes.* has {size}"):
        tensor.as_numpy()


def test_a_wrong_element_count_is_refused() -> None:
    tensor = Tensor("x", DataType.BYTES, (3,), encode_bytes_elements([b"a", b"b"]))
    with pytest.raises(InvalidArgument, match=r"'x' of shape \[3\] holds 3 elements, but its data has 2"):
        tensor.as_numpy()


def test_a_dtype_without_datatype_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'x': numpy dtype complex64 has no datatype"):
        Tensor.from_numpy("x", np.zeros(2, np.complex64))


def test_byte_size_counts_bytes_of_any_buffer() -> None:
    """A view of wider items is as long as its bytes, not as its items."""
    wide = memoryview(np.zeros(4, np.float32).data)
    assert Tensor("x", DataType.FP32, (4,), wide).byte_size == 16
    assert Tensor("x", DataType.FP32, (4,), bytearray(16)).byte_size == 16
