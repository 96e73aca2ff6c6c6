"""GraphDefs: inputs are Placeholders, outputs any node, and the configuration says which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from backends.interface import InstanceSpec
from backends.tensorflow import TensorFlowBackend
from backends.tensorflow.library import tf, v1
from protocol.errors import Internal, InvalidArgument, ServerError, Unsupported
from repository.model_config import InstanceKind
from tests.backends.helpers import answer, infer, loaded, request_of, source_of, spec_of
from tests.backends.tensorflow.tensorflow_models import graph_def, placeholder, sum_graph

ROWS = """
platform: "tensorflow_graphdef"
max_batch_size: 4
input [ { name: "A" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


def instance(config: str, folder: Path, kind: InstanceKind = InstanceKind.CPU) -> InstanceSpec:
    return spec_of(source_of(f'backend: "tensorflow"\n{config}', folder), kind=kind)


def rows_of(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


async def summed(config: str, folder: Path, names: tuple[str, ...] = ("A", "B")) -> Any:
    async with loaded(TensorFlowBackend, instance(config, folder)) as backend:
        (found,) = await infer(backend, request_of(*((name, rows_of(2)) for name in names)))
        (array,) = answer(found).values()
        return array.tolist()


async def refused(config: str, folder: Path, kind: type[ServerError] = InvalidArgument) -> str:
    """What the load says, and the check of `trioton doctor`."""
    with pytest.raises(kind) as caught:
        async with loaded(TensorFlowBackend, instance(config, folder)):
            pass
    with pytest.raises(kind) as checked:
        await TensorFlowBackend.check_model(instance(config, folder).source)
    assert checked.value.message == caught.value.message
    return caught.value.message


async def test_nodes_are_found_by_their_names_and_by_those_of_their_tensors(tmp_path: Path) -> None:
    sum_graph(tmp_path)
    assert await summed(ROWS, tmp_path) == (2 * rows_of(2)).tolist()
    assert (
        await summed(ROWS.replace('"A"', '"A:0"').replace('"SUM"', '"SUM:0"'), tmp_path, ("A:0", "B"))
        == (2 * rows_of(2)).tolist()
    )


async def test_a_nodes_second_result(tmp_path: Path) -> None:
    graph_def(tmp_path, lambda: tf.split(placeholder("A", (None, 6)), 2, axis=1, name="HALVES"))
    config = """
platform: "tensorflow_graphdef"
max_batch_size: 4
input [ { name: "A" data_type: TYPE_FP32 dims: [ 6 ] } ]
output [ { name: "HALVES:1" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
    async with loaded(TensorFlowBackend, instance(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("A", np.arange(6, dtype=np.float32)[None])))
        assert answer(found)["HALVES:1"].tolist() == [[3, 4, 5]]


async def test_a_device_that_the_file_names_is_the_instances_unless_its_kind_is_model(tmp_path: Path) -> None:
    """Where the file wants a GPU that is not there, soft placement finds the CPU."""

    def build() -> None:
        with tf.device("/device:GPU:7"):
            tf.add(placeholder("A", (None, 3)), placeholder("B", (None, 3)), name="SUM")

    graph_def(tmp_path, build)
    for kind, device in ((InstanceKind.CPU, "/device:CPU:0"), (InstanceKind.MODEL, "/device:GPU:7")):
        async with loaded(TensorFlowBackend, instance(ROWS, tmp_path, kind)) as backend:
            assert isinstance(backend, TensorFlowBackend)
            assert backend._session is not None
            assert {each.device for each in backend._session._graph.get_operations()} == {device}
            (found,) = await infer(backend, request_of(("A", rows_of(1)), ("B", rows_of(1))))
            assert answer(found)["SUM"].tolist() == (2 * rows_of(1)).tolist()


async def test_a_placeholder_that_no_output_needs_may_be_left_out(tmp_path: Path) -> None:
    def build() -> None:
        default = v1.placeholder_with_default(np.ones((1, 3), np.float32), (None, 3), name="C")
        tf.add(placeholder("A", (None, 3)) + placeholder("B", (None, 3)), default, name="SUM")
        tf.identity(placeholder("UNUSED", (None,)), name="OTHER")

    graph_def(tmp_path, build)
    assert await summed(ROWS, tmp_path) == (2 * rows_of(2) + 1).tolist()
    three = ROWS.replace("input [", 'input [ { name: "C" data_type: TYPE_FP32 dims: [ 3 ] },')
    assert await summed(three, tmp_path, ("A", "B", "C")) == (3 * rows_of(2)).tolist()


async def test_dimensions_that_the_library_cannot_infer_are_the_configurations(tmp_path: Path) -> None:
    def build() -> None:
        shape = placeholder("B", (None,), tf.int32)
        tf.reshape(placeholder("A", None), shape, name="SUM")

    graph_def(tmp_path, build)
    config = """
platform: "tensorflow_graphdef"
input [ { name: "A" data_type: TYPE_FP32 dims: [ 2, 3 ] }, { name: "B" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 3, 2 ] } ]
"""
    async with loaded(TensorFlowBackend, instance(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("A", rows_of(2)), ("B", np.array([3, 2], np.int32))))
        assert answer(found)["SUM"].tolist() == rows_of(2).reshape(3, 2).tolist()


async def test_configurations_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    sum_graph(tmp_path)
    one = ROWS.replace(', { name: "B" data_type: TYPE_FP32 dims: [ 3 ] }', "")
    assert "output 'SUM' needs the Placeholder 'B', which is no input of the configuration" in await refused(
        one, tmp_path
    )
    other = await refused(ROWS.replace('"SUM"', '"PRODUCT"'), tmp_path)
    assert "unexpected inference output 'PRODUCT', allowed outputs are: SUM, and every other" in other
    assert "unexpected inference input 'SUM', allowed inputs are: A, B" in await refused(
        ROWS.replace('"B"', '"SUM"'), tmp_path
    )
    assert "configuration expects datatype TYPE_FP16 for output 'SUM', model provides TYPE_FP32" in await refused(
        ROWS.replace('"SUM" data_type: TYPE_FP32', '"SUM" data_type: TYPE_FP16'), tmp_path
    )


async def test_an_operator_of_a_library_that_is_not_loaded_is_named(tmp_path: Path) -> None:
    path = sum_graph(tmp_path)
    graph = v1.GraphDef()
    graph.ParseFromString(path.read_bytes())
    graph.node[-1].op = "OperatorOfMine"
    path.write_bytes(graph.SerializeToString())
    assert await refused(ROWS, tmp_path, Internal) == (
        "tensorflow error in loading the GraphDef: Op type not registered 'OperatorOfMine'; a library that has it is "
        "named by model_operations { op_library_filename } (model 'm')"
    )


async def test_an_output_of_no_datatype_of_the_protocol_is_refused(tmp_path: Path) -> None:
    def build() -> None:
        tf.complex(placeholder("A", (None, 3)), placeholder("B", (None, 3)), name="SUM")

    graph_def(tmp_path, build)
    assert "unsupported datatype complex64 for output 'SUM'" in await refused(ROWS, tmp_path, Unsupported)


async def test_an_incomplete_configuration_is_told_what_the_file_has(tmp_path: Path) -> None:
    sum_graph(tmp_path)
    source = instance('platform: "tensorflow_graphdef"', tmp_path).source
    with pytest.raises(InvalidArgument) as caught:
        await TensorFlowBackend.complete_config(source)
    assert "model configuration must contain at least one input, none were specified" in caught.value.message
    assert "'A' (TYPE_FP32, [-1, 3]), 'B' (TYPE_FP32, [-1, 3])" in caught.value.message
    whole = instance(ROWS, tmp_path).source
    assert await TensorFlowBackend.complete_config(whole) == whole.config
