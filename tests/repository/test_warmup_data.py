"""The data of warm-up samples: every source, every datatype, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import Tensor, encode_bytes_elements
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt
from repository.warmup_data import warmup_samples

INPUT = 'name: "m" backend: "b" max_batch_size: 4 input { name: "IN" data_type: TYPE_FP32 dims: [ 2, -1 ] }'


def config(text: str) -> ModelConfig:
    return parse_pbtxt(text, source="test")


def warmup(value: str, *, data_type: str = "TYPE_FP32", dims: str = "2, 3", more: str = "batch_size: 1") -> str:
    return (
        f'model_warmup {{ name: "s" {more} inputs {{ key: "IN" value {{ data_type: {data_type} dims: [ {dims} ] '
        f"{value} }} }} }}"
    )


def only_tensor(text: str, directory: Path = Path("/nowhere")) -> Tensor:
    (sample,) = warmup_samples(config(text), directory)
    (tensor,) = sample.tensors
    return tensor


def test_zero_data() -> None:
    tensor = only_tensor(f"{INPUT} {warmup('zero_data: true')}")
    assert (tensor.name, tensor.datatype, tensor.shape) == ("IN", DataType.FP32, (1, 2, 3))
    assert tensor.as_numpy().tolist() == [[[0, 0, 0], [0, 0, 0]]]


def test_a_source_counts_as_set_whatever_its_value() -> None:
    assert only_tensor(f"{INPUT} {warmup('zero_data: false')}").byte_size == 24


@pytest.mark.parametrize("datatype", [each for each in DataType if each is not DataType.INVALID])
@pytest.mark.parametrize("source", ["zero_data", "random_data"])
def test_every_datatype_from_every_made_source(datatype: DataType, source: str) -> None:
    """What is made can be read back, and floating-point values are finite."""
    text = f'name: "m" backend: "b" input {{ name: "IN" data_type: {datatype.value} dims: [ 5 ] }}'
    tensor = only_tensor(f"{text} {warmup(f'{source}: true', data_type=datatype.value, dims='5')}")
    assert tensor.shape == (5,), "no batch dimension"
    values = tensor.as_numpy()
    if datatype is DataType.BYTES:
        assert values.tolist() == [b""] * 5, "also for random_data"
        return
    assert np.isfinite(values.astype(np.float64)).all()
    assert source == "random_data" or not values.any()


def test_random_data_is_random_and_the_same_for_each_load() -> None:
    text = f"{INPUT} {warmup('random_data: true', dims='2, 50')}"
    values = only_tensor(text).as_numpy()
    assert len(np.unique(values)) > 50
    assert np.array_equal(values, only_tensor(text).as_numpy())


def test_input_data_file(tmp_path: Path) -> None:
    """A longer file is read as far as the tensor goes; a file may lie deeper."""
    array = np.arange(8, dtype=np.float32)
    (tmp_path / "warmup" / "deep").mkdir(parents=True)
    (tmp_path / "warmup" / "deep" / "raw").write_bytes(array.tobytes())
    source = 'input_data_file: "deep/raw"'
    tensor = only_tensor(f"{INPUT} {warmup(source)}", tmp_path)
    assert tensor.as_numpy().reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]


def test_input_data_file_of_strings(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "raw").write_bytes(encode_bytes_elements([b"one", b"two"]))
    text = 'name: "m" backend: "b" input { name: "IN" data_type: TYPE_STRING dims: [ 2 ] }'
    source = 'input_data_file: "raw"'
    tensor = only_tensor(f"{text} {warmup(source, data_type='TYPE_STRING', dims='2')}", tmp_path)
    assert tensor.as_numpy().tolist() == [b"one", b"two"]


def test_batch_size_and_count() -> None:
    """A batch size of 0 skips the sample, a count of 0 is one; requests are made anew for each execution."""
    texts = [
        warmup("zero_data: true", more="batch_size: 0"),
        warmup("zero_data: true", more="batch_size: 3"),
        warmup("zero_data: true", more="batch_size: 1 count: 5"),
    ]
    first, second = warmup_samples(config(f"{INPUT} {' '.join(texts)}"), Path("/nowhere"))
    assert (first.batch_size, first.count) == (3, 1)
    assert (second.batch_size, second.count) == (1, 5)
    requests = first.requests("m", 7)
    assert [(request.model_name, request.model_version) for request in requests] == [("m", 7)] * 3
    assert requests[0].inputs is not requests[1].inputs


def test_inputs_follow_the_configuration_and_control_tensors_come_last() -> None:
    inputs = "".join(
        f'inputs {{ key: "{name}" value {{ data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }} }}'
        for name in ("START", "B", "A")
    )
    text = 'name: "m" backend: "b" ' + "".join(
        f'input {{ name: "{name}" data_type: TYPE_INT32 dims: [ 1 ] }}' for name in ("A", "B")
    )
    (sample,) = warmup_samples(config(f'{text} model_warmup {{ name: "s" batch_size: 1 {inputs} }}'), Path("/nowhere"))
    assert [tensor.name for tensor in sample.tensors] == ["A", "B", "START"]


REFUSED = {
    "warmup setting expects all variable-size dimensions are specified for input 'IN'": warmup(
        "zero_data: true", dims="2, -1"
    ),
    "warmup setting expects input 'IN' to have input_data_type set": warmup(""),
    "which must stay within the model's directory 'warmup'": warmup('input_data_file: "../secret"'),
    "cannot read file": warmup('input_data_file: "absent"'),
    "sample 's' of model 'm' has count 2147483648, at most 100000 is allowed": warmup(
        "zero_data: true", more="batch_size: 1 count: 2147483648"
    ),
    "has batch_size 5, but max_batch_size is 4": warmup("zero_data: true", more="batch_size: 5"),
    "has for input 'IN' data_type TYPE_INT32, but the model expects TYPE_FP32": warmup(
        "zero_data: true", data_type="TYPE_INT32"
    ),
    r"has for input 'IN' dims \[3, 3\], but the model expects \[2, -1\]": warmup("zero_data: true", dims="3, 3"),
    "does not set required input\\(s\\): 'IN'": 'model_warmup { name: "s" batch_size: 1 }',
    "asks for 8000000000000 bytes, at most": warmup("zero_data: true", dims="2, 1000000000000"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        warmup_samples(config(f"{INPUT} {REFUSED[text]}"), Path("/nowhere"))


@pytest.mark.parametrize(
    ("most", "more", "refusal"),
    [
        (0, "batch_size: 99999999", "has batch_size 99999999, at most 100000 is allowed"),
        (0, "batch_size: 1000 count: 1000", "runs 1000000 requests one by one, at most 100000 are allowed"),
        (0, "batch_size: 1000 count: 100", None),
        (1 << 30, "batch_size: 99999999", "has batch_size 99999999, at most 100000 is allowed"),
        (1 << 30, "batch_size: 100000 count: 100000", None),
    ],
)
def test_a_slip_in_the_batch_size_takes_no_memory(most: int, more: str, refusal: str | None) -> None:
    """The requests of a sample are all there at one time, or run one by one where the model does not batch."""
    text = f'name: "m" backend: "b" max_batch_size: {most} model_warmup {{ name: "s" {more} }}'
    if refusal is None:
        assert len(warmup_samples(config(text), Path("/nowhere"))) == 1
        return
    with pytest.raises(InvalidArgument, match=refusal):
        warmup_samples(config(text), Path("/nowhere"))


def test_all_rows_of_a_batch_count() -> None:
    text = INPUT.replace("4", "1000")
    dims = f"2, {1 << 22}"
    with pytest.raises(InvalidArgument, match=f"asks for {1000 << 25} bytes, at most {1 << 32} are allowed"):
        only_tensor(f"{text} {warmup('zero_data: true', dims=dims, more='batch_size: 1000')}")


def test_a_file_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "raw").write_bytes(bytes(23))
    with pytest.raises(InvalidArgument) as caught:
        only_tensor(f"{INPUT} " + warmup('input_data_file: "raw"'), tmp_path)
    assert caught.value.message == ("warmup setting expects 24 bytes, but the data provided from rawonly has 23 bytes")


def test_a_shape_tensor_has_no_batch_dimension() -> None:
    text = """
        name: "m" max_batch_size: 4 input { name: "S" data_type: TYPE_INT32 dims: 2 is_shape_tensor: true }
        model_warmup { name: "w" batch_size: 1 inputs { key: "S" value {
          data_type: TYPE_INT32 dims: 2 zero_data: true } } }
    """
    (sample,) = warmup_samples(parse_pbtxt(text, source="test"), Path("/nowhere"))
    assert sample.tensors[0].shape == (2,)
