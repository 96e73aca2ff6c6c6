"""What data has to fit: from a configuration or from metadata, and shapes from the command line."""

from __future__ import annotations

import pytest

from protocol.core import TensorMetadata
from protocol.datatypes import DataType
from trioton.perf.caller import DataError, ModelDescription
from trioton.perf.data.inputs import GivenShape, given_shape, slots_of


def test_of_a_configuration() -> None:
    config = {
        "max_batch_size": 8,
        "input": [
            {"name": "A", "data_type": "TYPE_FP32", "dims": ["-1", 3]},
            {"name": "B", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
        ],
        "output": [{"name": "C", "data_type": "TYPE_BF16", "dims": [1]}],
    }
    slots = slots_of(ModelDescription("m", config=config))
    assert slots.is_batching
    assert [(each.name, each.datatype, each.dims, each.is_optional) for each in slots.inputs] == [
        ("A", DataType.FP32, (-1, 3), False),
        ("B", DataType.BYTES, (1,), True),
    ]
    assert slots.output("C").datatype is DataType.BF16


def test_of_metadata_alone() -> None:
    described = ModelDescription("m", inputs=[TensorMetadata("A", "INT64", (-1, 3))])
    slots = slots_of(described)
    assert not slots.is_batching
    assert slots.input("A").dims == (-1, 3)


def test_of_metadata_with_a_batch_dimension() -> None:
    described = ModelDescription("m", inputs=[TensorMetadata("A", "INT64", (-1, 3))], config={"max_batch_size": 4})
    assert slots_of(described).input("A").dims == (3,)


def test_a_datatype_that_there_is_not() -> None:
    with pytest.raises(DataError, match="'A' has the datatype 'FP13'"):
        slots_of(ModelDescription("m", inputs=[TensorMetadata("A", "FP13", (1,))]))


def test_a_name_that_there_is_not_is_told_with_those_that_are() -> None:
    slots = slots_of(ModelDescription("m", inputs=[TensorMetadata("A", "FP32", (1,))]))
    with pytest.raises(DataError, match="model 'm' has no input 'B'; it has 'A'"):
        slots.input("B")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A:3,224,224", GivenShape("A", ((3, 3), (224, 224), (224, 224)))),
        ("A:1-64", GivenShape("A", ((1, 64),))),
        ("a:b:2", GivenShape("a:b", ((2, 2),))),
        ("A:", GivenShape("A", ())),
    ],
)
def test_a_given_shape(text: str, expected: GivenShape) -> None:
    assert given_shape(text) == expected
    assert given_shape(str(expected)) == expected


@pytest.mark.parametrize("text", ["A", ":1", "A:x", "A:-1", "A:4-2", "A:1.5"])
def test_no_shape(text: str) -> None:
    with pytest.raises(ValueError, match="expected <input>:<size>"):
        given_shape(text)
