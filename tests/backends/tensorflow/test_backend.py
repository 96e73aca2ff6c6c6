"""Real models in the backend: datatypes, variables, tables, old forms of SavedModels, sessions, devices, errors."""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

pytest.importorskip("tensorflow")

from backends.affinity import usable_cores
from backends.interface import InstanceSpec
from backends.tensorflow import TensorFlowBackend
from backends.tensorflow.library import tf, v1
from protocol.errors import Internal, InvalidArgument, Overloaded, ServerError, Unavailable, Unsupported
from repository.model_config import InstanceKind
from tests.backends.helpers import answer, infer, loaded, objects, request_of, source_of, spec_of
from tests.backends.tensorflow.tensorflow_models import saved_model, spec, sum_of

ROWS = """
max_batch_size: 4
input [ { name: "A" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
ROW = """
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
TEXT = ROW.replace("FP32", "STRING").replace("[ 3 ]", "[ -1 ]")


def parameter(key: str, text: str) -> str:
    return f'\nparameters {{ key: "{key}" value {{ string_value: "{text}" }} }}'


def instance(config: str, folder: Path, kind: InstanceKind = InstanceKind.CPU, **settings: str) -> InstanceSpec:
    return spec_of(source_of(f'backend: "tensorflow"\n{config}', folder, settings=settings), kind=kind)


def rows_of(count: int, width: int = 3) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def plus_one(folder: Path) -> Path:
    return saved_model(folder, lambda X: {"Y": X + 1}, spec("X", [None, 3]))  # noqa: N803


async def refused(config: str, folder: Path, kind: type[ServerError], device: InstanceKind = InstanceKind.CPU) -> str:
    """What a load says that fails."""
    with pytest.raises(kind) as caught:
        async with loaded(TensorFlowBackend, instance(config, folder, device)):
            pass
    assert "m" in caught.value.message
    return caught.value.message


async def test_instances_on_the_cpu_and_of_the_models_own_places(tmp_path: Path) -> None:
    sum_of(tmp_path)
    for kind in (InstanceKind.CPU, InstanceKind.MODEL):
        async with loaded(TensorFlowBackend, instance(ROWS, tmp_path, kind)) as backend:
            for count in (1, 4):
                (found,) = await infer(backend, request_of(("A", rows_of(count)), ("B", rows_of(count))))
                assert answer(found)["SUM"].tolist() == (2 * rows_of(count)).tolist()


async def test_variables_and_tables_are_there(tmp_path: Path) -> None:
    """Tables are filled from the model's own assets when it is loaded."""
    words = tmp_path / "words.txt"
    words.write_text("no\nyes\n")
    module = tf.Module()
    keys, values = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    reading = tf.lookup.TextFileInitializer(str(words), tf.string, keys, tf.int64, values)
    module.table = tf.lookup.StaticHashTable(reading, default_value=-1)
    module.offset = tf.Variable(np.int64(100))
    saved_model(
        tmp_path,
        lambda X: {"Y": module.table.lookup(X) + module.offset},  # noqa: N803
        spec("X", [None, None], tf.string),
        module=module,
    )
    words.unlink()
    config = TEXT.replace('"Y" data_type: TYPE_STRING', '"Y" data_type: TYPE_INT64')
    async with loaded(TensorFlowBackend, instance(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", objects(b"yes", b"no", b"perhaps").reshape(1, 3))))
        assert answer(found)["Y"].tolist() == [[101, 100, 99]]


async def test_bytes_of_strings_are_passed_on_as_they_are(tmp_path: Path) -> None:
    saved_model(tmp_path, lambda X: {"Y": tf.strings.join([X, b"\0"])}, spec("X", [None, None], tf.string))  # noqa: N803
    async with loaded(TensorFlowBackend, instance(TEXT, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", objects(b"\xff\x00", b"").reshape(2, 1))))
        assert answer(found)["Y"].tolist() == [[b"\xff\x00\x00"], [b"\x00"]]


async def test_one_element_without_a_batch(tmp_path: Path) -> None:
    saved_model(
        tmp_path,
        lambda X, S: {"Y": X + 1, "T": tf.strings.join([S, b"\0"])},  # noqa: N803
        spec("X", []),
        spec("S", [], tf.string),
    )
    config = """
input [
  { name: "X" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } },
  { name: "S" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } }
]
output [
  { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } },
  { name: "T" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } }
]
"""
    async with loaded(TensorFlowBackend, instance(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", np.array([2], np.float32)), ("S", objects(b"s"))))
        assert answer(found)["Y"].tolist() == [3.0]
        assert answer(found)["T"].tolist() == [b"s\0"]


async def test_a_saved_model_of_the_first_release(tmp_path: Path) -> None:
    """With variables that it changes in place, and an output that is an input."""
    graph = tf.Graph()
    with graph.as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 3], "rows")
        total = v1.Variable(np.zeros((1, 3), np.float32), use_resource=False, name="total")
        with tf.control_dependencies([v1.assign_add(total, tf.reduce_sum(x, 0, keepdims=True))]):
            counted = tf.identity(x + 1)
        session.run(v1.global_variables_initializer())
        path = str(tmp_path / "1" / "model.savedmodel")
        v1.saved_model.simple_save(session, path, {"X": x}, {"SAME": x, "TOTAL": total, "Y": counted})
    config = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
output [
  { name: "SAME" data_type: TYPE_FP32 dims: [ -1, 3 ] },
  { name: "TOTAL" data_type: TYPE_FP32 dims: [ 1, 3 ] },
  { name: "Y" data_type: TYPE_FP32 dims: [ -1, 3 ] }
]
"""
    async with loaded(TensorFlowBackend, instance(config, tmp_path)) as backend:
        first = answer((await infer(backend, request_of(("X", rows_of(2)))))[0])
        before = first["TOTAL"].copy()
        second = answer((await infer(backend, request_of(("X", rows_of(2)))))[0])
        third = answer((await infer(backend, request_of(("X", rows_of(2)))))[0])
    assert first["SAME"].tolist() == rows_of(2).tolist()
    assert first["Y"].tolist() == (rows_of(2) + 1).tolist()
    assert first["TOTAL"].tolist() == before.tolist()
    assert first["TOTAL"].tolist() != third["TOTAL"].tolist() != second["TOTAL"].tolist()


async def test_answers_are_not_in_the_requests_memory(tmp_path: Path) -> None:
    saved_model(tmp_path, lambda X: {"Y": tf.identity(X)}, spec("X", [None, None]))  # noqa: N803
    config = ROW.replace("[ 3 ]", "[ -1 ]")
    memory = np.zeros(64 + 4096, np.uint8)
    start = -memory.ctypes.data % 64
    rows = memory[start : start + 4096].view(np.float32).reshape(1, 1024)  # aligned as the library wants it
    async with loaded(TensorFlowBackend, instance(config, tmp_path)) as backend:
        request = request_of(("X", rows))
        (found,) = await infer(backend, request)
        assert not np.shares_memory(answer(found)["Y"], request.inputs[0].as_numpy())


async def test_the_signature_and_the_graph_are_chosen_by_parameters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def function(step: int) -> Any:
        return tf.function(lambda X: {"Y": X + step}, input_signature=[spec("X", [None, 3])])  # noqa: N803

    path = str(tmp_path / "1" / "model.savedmodel")
    tf.saved_model.save(tf.Module(), path, signatures={"b_two": function(2), "c_three": function(3)})

    async def step(config: str) -> float:
        async with loaded(TensorFlowBackend, instance(ROW + config, tmp_path)) as backend:
            (found,) = await infer(backend, request_of(("X", np.zeros((1, 3), np.float32))))
            return float(answer(found)["Y"][0, 0])

    assert await step(parameter("TF_SIGNATURE_DEF", "c_three") + parameter("TF_GRAPH_TAG", "serve")) == 3
    assert "several others" not in caplog.text
    assert await step("") == 2
    assert "no signature 'serving_default' and several others; 'b_two' is served" in caplog.text
    wrong = await refused(ROW + parameter("TF_SIGNATURE_DEF", "four"), tmp_path, InvalidArgument)
    assert "unable to load model 'm', expected 'four' signature; the SavedModel has: b_two, c_three" in wrong
    wrong = await refused(ROW + parameter("TF_GRAPH_TAG", "serve,gpu"), tmp_path, InvalidArgument)
    assert "unable to load model 'm', expected 'gpu,serve' tag; the SavedModel has: serve" in wrong


async def test_a_saved_model_without_signatures_is_refused(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "1" / "model.savedmodel"))
    wrong = await refused(ROW, tmp_path, InvalidArgument)
    assert "expected 'serving_default' signature; the SavedModel has: none" in wrong


async def test_an_input_that_is_no_dense_tensor_is_refused(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.sparse_placeholder(tf.float32, [None, 3])
        path = str(tmp_path / "1" / "model.savedmodel")
        v1.saved_model.simple_save(session, path, {"X": x}, {"Y": tf.sparse.to_dense(x)})
    wrong = await refused(ROW, tmp_path, Unsupported)
    assert "'X' of signature 'serving_default' is a sparse tensor, and only dense ones can be served" in wrong


async def test_a_datatype_that_no_protocol_has_is_refused_by_name(tmp_path: Path) -> None:
    saved_model(tmp_path, lambda X: {"Y": X}, spec("X", [None, 3], tf.complex64))  # noqa: N803
    assert "unsupported datatype complex64 for input 'X'" in await refused(ROW, tmp_path, Unsupported)


async def test_a_tensor_of_no_rank_has_the_dimensions_of_the_configuration(tmp_path: Path) -> None:
    saved_model(tmp_path, lambda X: {"Y": X * 2}, spec("X", None))  # noqa: N803
    async with loaded(TensorFlowBackend, instance(ROW, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", rows_of(2))))
        assert answer(found)["Y"].tolist() == (2 * rows_of(2)).tolist()


async def test_operations_of_a_file_are_run_when_the_model_is_loaded(tmp_path: Path) -> None:
    graph = tf.Graph()
    with graph.as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 3])
        offset = v1.Variable(np.float32(1), use_resource=True)
        v1.assign(offset, 5.0, name="set_offset")
        session.run(v1.global_variables_initializer())
        path = str(tmp_path / "1" / "model.savedmodel")
        v1.saved_model.simple_save(session, path, {"X": x}, {"Y": x + offset})
    operation = next(op.name for op in graph.get_operations() if op.name.startswith("set_offset"))
    config = ROW + parameter("TF_INIT_OPS_FILE", "init.json")
    assert "there is no file" in await refused(config, tmp_path, InvalidArgument)
    for folder, names, expected in ((tmp_path, [], 1.0), (tmp_path / "1", [operation], 5.0)):
        (folder / "init.json").write_text(json.dumps({"init_ops": names}))
        async with loaded(TensorFlowBackend, instance(config, tmp_path)) as backend:
            (found,) = await infer(backend, request_of(("X", np.zeros((1, 3), np.float32))))
            assert answer(found)["Y"][0, 0] == expected
    (tmp_path / "1" / "init.json").write_text('{"init_ops": ["no_such"]}')
    assert "no_such" in await refused(config, tmp_path, Internal)
    (tmp_path / "1" / "init.json").write_text('["init_ops"]')
    assert 'to hold {"init_ops":' in await refused(config, tmp_path, InvalidArgument)


async def test_instances_share_sessions_as_far_as_the_configuration_says(tmp_path: Path) -> None:
    module = tf.Module()
    module.count = tf.Variable(0.0)
    saved_model(
        tmp_path,
        lambda X: {"Y": X * 0 + module.count.assign_add(1.0)},  # noqa: N803
        spec("X", [None, 3]),
        module=module,
    )
    shared = instance(ROW + parameter("MAX_SESSION_SHARE_COUNT", "2"), tmp_path)

    async def count(backend: Any) -> float:
        (found,) = await infer(backend, request_of(("X", np.zeros((1, 3), np.float32))))
        return float(answer(found)["Y"][0, 0])

    one = TensorFlowBackend(shared)
    await one.load()
    async with loaded(TensorFlowBackend, shared) as two, loaded(TensorFlowBackend, shared) as three:
        assert [await count(each) for each in (one, two, three, two)] == [1, 2, 1, 3]
        assert [len(each.memory_usage()) for each in (one, two, three)] == [1, 0, 1]
        await one.unload()
        assert await count(two) == 4
        async with loaded(TensorFlowBackend, shared) as four:
            assert await count(four) == 5
    async with loaded(TensorFlowBackend, shared) as five:
        assert await count(five) == 1


async def test_instances_of_one_session_run_at_the_same_time(tmp_path: Path) -> None:
    plus_one(tmp_path)
    shared = instance(ROW + parameter("MAX_SESSION_SHARE_COUNT", "2"), tmp_path)
    async with (
        loaded(TensorFlowBackend, shared) as one,
        loaded(TensorFlowBackend, shared) as two,
        trio.open_nursery() as nursery,
    ):

        async def ask(backend: Any, start: int) -> None:
            for turn in range(50):
                rows = np.full((2, 3), start + turn, np.float32)
                (found,) = await infer(backend, request_of(("X", rows)))
                assert answer(found)["Y"].tolist() == (rows + 1).tolist()

        nursery.start_soon(ask, one, 0)
        nursery.start_soon(ask, two, 1000)


@pytest.mark.parametrize("count", ["1", "-1", "2"])
async def test_threads_between_operators(tmp_path: Path, count: str) -> None:
    """A single one is the instance's own."""
    seen: list[int] = []

    def look(rows: Any) -> Any:
        seen.append(threading.get_ident())
        return rows

    saved_model(
        tmp_path,
        lambda X: {"Y": tf.ensure_shape(tf.numpy_function(look, [X], tf.float32), [None, 3])},  # noqa: N803
        spec("X", [None, 3]),
    )
    config = ROW + parameter("TF_NUM_INTER_THREADS", count) + parameter("TF_USE_PER_SESSION_THREADS", "true")
    async with loaded(TensorFlowBackend, instance(config, tmp_path)) as backend:
        assert isinstance(backend, TensorFlowBackend)
        (found,) = await infer(backend, request_of(("X", rows_of(2))))
        assert answer(found)["Y"].tolist() == rows_of(2).tolist()
        own = backend._thread._thread
        assert own is not None
        assert (seen == [own.ident]) is (count != "2")


@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores to choose from")
async def test_an_instance_that_is_bound_to_cores_runs_there_and_binds_nobody(tmp_path: Path) -> None:
    seen: list[set[int]] = []

    def look(rows: Any) -> Any:
        seen.append(os.sched_getaffinity(0))
        return rows

    saved_model(
        tmp_path,
        lambda X: {"Y": tf.ensure_shape(tf.numpy_function(look, [X], tf.float32), [None, 3])},  # noqa: N803
        spec("X", [None, 3]),
    )
    core = max(usable_cores())
    for cores in (frozenset({core}), frozenset()):
        bound = replace(instance(ROW, tmp_path), cpu_cores=cores)
        async with loaded(TensorFlowBackend, bound) as backend:
            (found,) = await infer(backend, request_of(("X", rows_of(2))))
            assert answer(found)["Y"].tolist() == rows_of(2).tolist()
    assert seen == [{core}, set(usable_cores())]


async def test_clients_mistakes_are_theirs(tmp_path: Path) -> None:
    saved_model(tmp_path, lambda A, B: {"SUM": A + B}, spec("A", [None, None]), spec("B", [None, None]))  # noqa: N803
    config = ROWS.replace("[ 3 ]", "[ -1 ]")
    async with loaded(TensorFlowBackend, instance(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("A", rows_of(1, 3)), ("B", rows_of(1, 4))))
        with pytest.raises(InvalidArgument) as caught:
            answer(found)
        text = "tensorflow error in running model: Incompatible shapes: [1,3] vs. [1,4] (model 'm')"
        assert caught.value.message == text
        (found,) = await infer(backend, request_of(("A", rows_of(1)), ("B", rows_of(1))))
        assert answer(found)["SUM"].tolist() == (2 * rows_of(1)).tolist()


async def test_a_models_own_failure_is_its_own(tmp_path: Path) -> None:
    def fail(rows: Any) -> Any:
        raise RuntimeError("the model is broken")

    saved_model(
        tmp_path,
        lambda X: {"Y": tf.ensure_shape(tf.numpy_function(fail, [X], tf.float32), [None, 3])},  # noqa: N803
        spec("X", [None, 3]),
    )
    async with loaded(TensorFlowBackend, instance(ROW, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", rows_of(1))))
        with pytest.raises(Internal, match=r"tensorflow error in running model: .*the model is broken"):
            answer(found)


async def test_a_device_without_memory_may_have_some_later(tmp_path: Path) -> None:
    def fail(rows: Any) -> Any:
        raise MemoryError("no room")

    saved_model(
        tmp_path,
        lambda X: {"Y": tf.ensure_shape(tf.numpy_function(fail, [X], tf.float32), [None, 3])},  # noqa: N803
        spec("X", [None, 3]),
    )
    async with loaded(TensorFlowBackend, instance(ROW, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", rows_of(1))))
        with pytest.raises(Overloaded, match="no room"):
            answer(found)


@pytest.mark.parametrize(
    ("config", "kind", "says"),
    [
        ('platform: "tensorflow"', InvalidArgument, "platform tensorflow not supported for TensorFlow model 'm'"),
        ('default_model_filename: "other"', Unavailable, r"unable to find '.*/1/other' for model instance 'm'"),
        (
            'model_operations { op_library_filename: "/no/such.so" }',
            Internal,
            r"loading the libraries of 'model_operations': .*/no/such\.so",
        ),
    ],
)
async def test_wrong_configurations_say_why(tmp_path: Path, config: str, kind: type[ServerError], says: str) -> None:
    plus_one(tmp_path)
    assert re.search(says, await refused(f"{ROW}\n{config}", tmp_path, kind))


async def test_a_folder_that_is_no_saved_model(tmp_path: Path) -> None:
    path = plus_one(tmp_path)
    variables = next((path / "variables").glob("variables.data*"))
    variables.unlink()
    module = tf.Module()
    module.weight = tf.Variable(1.0)
    saved_model(tmp_path / "x", lambda X: {"Y": X + module.weight}, spec("X", [None, 3]), module=module)  # noqa: N803
    for each in (tmp_path / "x" / "1" / "model.savedmodel" / "variables").iterdir():
        each.unlink()
    wrong = await refused(ROW, tmp_path / "x", Internal)
    assert "tensorflow error in loading the SavedModel: " in wrong
    (path / "saved_model.pb").unlink()
    assert "saved_model.pb' for model instance 'm'" in await refused(ROW, tmp_path, Unavailable)


async def test_a_saved_model_as_text_is_read(tmp_path: Path) -> None:
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    path = plus_one(tmp_path)
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    (path / "saved_model.pb").unlink()
    (path / "saved_model.pbtxt").write_text(text_format.MessageToString(saved))
    async with loaded(TensorFlowBackend, instance(ROW, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", rows_of(1))))
        assert answer(found)["Y"].tolist() == (rows_of(1) + 1).tolist()


async def test_an_instance_without_its_gpu_says_so(tmp_path: Path) -> None:
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("has a GPU")
    plus_one(tmp_path)
    wrong = await refused(ROW, tmp_path, Unavailable, InstanceKind.GPU)
    assert "model instance 'm_0_0' has KIND_GPU and device 0, but the installed TensorFlow" in wrong
    assert "sees no GPU" in wrong


@pytest.mark.gpu
async def test_an_instance_on_a_gpu(tmp_path: Path) -> None:
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs tensorflow[and-cuda] and an NVIDIA GPU")
    plus_one(tmp_path)
    async with loaded(TensorFlowBackend, instance(ROW, tmp_path, InstanceKind.GPU)) as backend:
        (found,) = await infer(backend, request_of(("X", rows_of(2))))
        assert answer(found)["Y"].tolist() == (rows_of(2) + 1).tolist()
