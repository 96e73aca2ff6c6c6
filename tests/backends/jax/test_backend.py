"""Real functions of `jax.export` in the backend: names, shapes, rows, compilations, weights, devices, errors."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trio

pytest.importorskip("jax")
pytest.importorskip("flatbuffers")

import jax
import jax.numpy as jnp
from jax import export

from backends.interface import Backend, InstanceSpec
from backends.jax import JaxBackend
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable, Unsupported
from repository.model_config import InstanceKind, ModelConfig
from tests.backends.helpers import answer, infer, loaded, request_of, source_of, spec_of
from tests.backends.jax.jax_models import exported, identity, save, spec

LONG = DataType.INT64
ROWS = """
max_batch_size: 6
input [ { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
ANY_SIZE = ROWS.replace("[ 3 ]", "[ -1 ]")


def parameter(key: str, text: str) -> str:
    return f'\nparameters {{ key: "{key}" value {{ string_value: "{text}" }} }}'


def shape_rules(text: str) -> str:
    return parameter("shape_rules", text.replace('"', '\\"'))


def instance(config: str, folder: Path, kind: InstanceKind = InstanceKind.CPU) -> InstanceSpec:
    return spec_of(source_of(f'backend: "jax"\n{config}', folder), kind=kind)


async def complete(config: str, folder: Path, **settings: str) -> ModelConfig:
    return await JaxBackend.complete_config(source_of(f'backend: "jax"\n{config}', folder, settings=settings))


def rows_of(count: int, width: int = 3) -> Any:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


async def refused(kind: type[ServerError], config: str, folder: Path, where: InstanceKind = InstanceKind.CPU) -> str:
    """What a load says that fails."""
    with pytest.raises(kind) as caught:
        async with loaded(JaxBackend, instance(config, folder, where)):
            pass
    assert "'m'" in caught.value.message or "'m_0_0'" in caught.value.message
    return caught.value.message


def compiled(backend: Backend) -> list[Any]:
    """The shapes for which there are executables, the least used first."""
    assert isinstance(backend, JaxBackend)
    assert backend._loaded is not None
    return list(backend._loaded.executables._entries)


async def ask(backend: Backend, **inputs: Any) -> dict[str, Any]:
    (found,) = await infer(backend, request_of(*inputs.items()))
    return answer(found)


def names(config: ModelConfig) -> tuple[list[str], list[str]]:
    return [entry.name for entry in config.input], [entry.name for entry in config.output]


def dims(config: ModelConfig) -> list[tuple[int, ...]]:
    return [*(entry.dims for entry in config.input), *(entry.dims for entry in config.output)]


async def test_completion_takes_names_and_batching_from_the_file(tmp_path: Path) -> None:
    scope = export.SymbolicScope()
    arguments = spec("rows, 3", scope=scope), spec("rows, n", LONG, scope=scope)
    save(tmp_path, lambda image, *, ids: {"score": image.sum(axis=1), "ids": ids}, arguments[0], ids=arguments[1])
    found = await complete("", tmp_path, **{"default-max-batch-size": "16"})
    assert names(found) == (["INPUT__0", "ids"], ["ids", "score"])
    assert dims(found) == [(3,), (-1,), (-1,), (1,)]
    assert found.output[1].reshape is not None  # a scalar for each row
    assert (found.max_batch_size, found.dynamic_batching is not None) == (16, True)
    async with loaded(JaxBackend, spec_of(dataclasses.replace(source_of("", tmp_path), config=found))) as backend:
        answered = await ask(backend, INPUT__0=rows_of(2), ids=np.array([[5], [2**40]]))
    assert answered["score"].tolist() == [[3.0], [12.0]]
    assert answered["ids"].tolist() == [[5], [2**40]]


@pytest.mark.parametrize(
    ("inputs", "output"),
    [(("rows, 3",), "2*rows"), (("a, 3", "b, 3"), "a"), (("4, 3",), "4"), (("2*rows, 3",), "rows")],
)
async def test_what_cannot_batch_is_completed_with_its_whole_shapes(
    inputs: tuple[str, ...], output: str, tmp_path: Path
) -> None:
    def function(*arrays: Any) -> Any:
        first = arrays[0]
        whole = {"2*rows": lambda: jnp.concatenate([first, first]), "rows": lambda: first[::2]}
        return whole.get(output, lambda: first)()

    scope = export.SymbolicScope()
    save(tmp_path, function, *(spec(each, scope=scope) for each in inputs))
    found = await complete("", tmp_path)
    assert (found.max_batch_size, found.dynamic_batching) == (0, None)
    assert {len(each) for each in dims(found)} == {2}


async def test_rows_out_that_are_not_rows_in_are_refused(tmp_path: Path) -> None:
    save(tmp_path, lambda X: {"Y": jnp.concatenate([X, X])}, X=spec("b, 3"))  # noqa: N803
    said = await refused(InvalidArgument, ROWS, tmp_path)
    assert "among the first dimensions of its tensors is 2*b" in said


PAIR = """
input [ { name: "%s" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "%s" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "%s" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "%s" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


@pytest.mark.parametrize(
    "called",
    [
        ("INPUT__0", "INPUT__1", "OUTPUT__0", "OUTPUT__1"),
        ("left__0", "right__1", "left__0", "right__1"),
        ("ARGS[0]", "INPUT__1", "RESULT[0]", "OUTPUT__1"),
        ("first", "second", "one", "other"),
    ],
)
async def test_positional_arguments_are_found_by_position_path_and_order(
    called: tuple[str, ...], tmp_path: Path
) -> None:
    save(tmp_path, lambda a, b: (a + 1, b + 2), spec("2"), spec("3"))
    async with loaded(JaxBackend, instance(PAIR % called, tmp_path)) as backend:
        found = await ask(backend, **{called[0]: np.zeros(2, np.float32), called[1]: np.zeros(3, np.float32)})
    assert {name: array.tolist() for name, array in found.items()} == {called[2]: [1, 1], called[3]: [2, 2, 2]}


@pytest.mark.parametrize(
    "called",
    [
        ("zebra", "ape[leaf]", "y", "x"),
        ("KWARGS[zebra]", "KWARGS[ape][leaf]", "RESULT[y]", "RESULT[x]"),
        ("INPUT__1", "INPUT__0", "OUTPUT__1", "OUTPUT__0"),
    ],
)
async def test_keywords_and_keys_are_found_by_name_path_and_sorted_position(
    called: tuple[str, ...], tmp_path: Path
) -> None:
    function = lambda *, zebra, ape: {"y": zebra + 1, "x": ape["leaf"] + 2}  # noqa: E731
    save(tmp_path, function, zebra=spec("2"), ape={"leaf": spec("3")})
    async with loaded(JaxBackend, instance(PAIR % called, tmp_path)) as backend:
        found = await ask(backend, **{called[0]: np.zeros(2, np.float32), called[1]: np.zeros(3, np.float32)})
    assert {name: array.tolist() for name, array in found.items()} == {called[2]: [1, 1], called[3]: [2, 2, 2]}


async def test_keys_of_the_only_argument_are_names(tmp_path: Path) -> None:
    save(tmp_path, lambda inputs: [inputs["b"] + 1, inputs["a"] + 2], {"a": spec("3"), "b": spec("2")})
    found = await complete("", tmp_path)
    assert names(found) == (["a", "b"], ["OUTPUT__0", "OUTPUT__1"])
    said = await refused(InvalidArgument, PAIR % ("b", "other", "OUTPUT__0", "OUTPUT__1"), tmp_path)
    assert "unexpected inference input 'other', allowed inputs are: a, b" in said


async def test_scalars_are_one_element(tmp_path: Path) -> None:
    save(tmp_path, lambda *, x: {"y": x * 2, "n": jnp.sum(x)}, x=spec("", LONG))
    found = await complete("", tmp_path)
    assert dims(found) == [(1,), (1,), (1,)]
    async with loaded(JaxBackend, spec_of(dataclasses.replace(source_of("", tmp_path), config=found))) as backend:
        answered = await ask(backend, x=np.array([2**40]))
    assert answered["y"].tolist() == [2**41]
    assert answered["y"].dtype == np.int64


@pytest.mark.parametrize(
    ("extra", "sizes"),
    [
        ("", [1, 2, 4, 6]),
        (parameter("BATCH_PADDING", "max"), [6]),
        (parameter("BATCH_PADDING", "PREFERRED") + "dynamic_batching { preferred_batch_size: [ 5 ] }", [5, 6]),
        (parameter("BATCH_PADDING", "NONE"), [1]),
        (shape_rules('{"batch": {"multiple": 3}}'), [3, 6]),
        (shape_rules('{"batch": {"buckets": [2, 6]}}'), [2, 6]),
    ],
    ids=["default", "max", "preferred", "none", "multiple", "buckets"],
)
async def test_batches_are_filled_up_to_numbers_of_rows_that_are_compiled_at_load(
    extra: str, sizes: list[int], tmp_path: Path
) -> None:
    identity(tmp_path, DataType.FP32, "b, 3")
    async with loaded(JaxBackend, instance(ROWS + extra, tmp_path)) as backend:
        assert sorted(compiled(backend)) == [((size, 3),) for size in sizes]
        for count in range(1, 7):
            assert (await ask(backend, X=rows_of(count)))["Y"].tolist() == rows_of(count).tolist()
        if "NONE" not in extra:
            assert len(compiled(backend)) == len(sizes)
        else:
            assert len(compiled(backend)) == 6


async def test_a_function_of_one_number_of_rows_batches_where_the_shape_rules_fill_up_to_it(tmp_path: Path) -> None:
    identity(tmp_path, DataType.FP32, "6, 3")
    assert "first dimension must be -1" in await refused(InvalidArgument, ROWS, tmp_path)
    config = ROWS + shape_rules('{"batch": {"buckets": [6]}}')
    async with loaded(JaxBackend, instance(config, tmp_path)) as backend:
        assert (await ask(backend, X=rows_of(2)))["Y"].tolist() == rows_of(2).tolist()


async def test_sizes_that_the_shape_rules_know_are_compiled_at_load(tmp_path: Path) -> None:
    scope = export.SymbolicScope()
    save(tmp_path, lambda *, X, M: {"Y": X * M}, X=spec("b, n", scope=scope), M=spec("b, n", scope=scope))  # noqa: N803
    rules = '{"inputs": {"X": {"dims": {"0": {"buckets": [4, 8]}}, "mask": {"input": "M", "data_type": "TYPE_FP32"}}}}'
    config = ANY_SIZE + shape_rules(rules) + parameter("BATCH_PADDING", "MAX")
    async with loaded(JaxBackend, instance(config, tmp_path)) as backend:
        assert sorted(compiled(backend)) == [((6, size), (6, size)) for size in (4, 8)]
        assert (await ask(backend, X=rows_of(2)))["Y"].tolist() == [[0, 1, 2, 0], [3, 4, 5, 0]]
        assert len(compiled(backend)) == 2
    limited = config + parameter("MAX_COMPILED_SHAPES", "1")
    assert "allows for 2 shapes, and at most 1" in await refused(InvalidArgument, limited, tmp_path)
    at_once = config + parameter("COMPILE_AT_LOAD", "false")
    async with loaded(JaxBackend, instance(at_once, tmp_path)) as backend:
        assert compiled(backend) == []


async def test_shapes_that_nobody_knows_are_compiled_as_they_come_and_let_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity(tmp_path, DataType.FP32, "b, n")
    config = ANY_SIZE + parameter("MAX_COMPILED_SHAPES", "2")
    async with loaded(JaxBackend, instance(config, tmp_path)) as backend:
        assert compiled(backend) == []
        with caplog.at_level(logging.INFO, "trioton.jax"):
            for width in (2, 3, 2, 4, 5, 2):
                assert (await ask(backend, X=rows_of(1, width)))["Y"].tolist() == rows_of(1, width).tolist()
        assert compiled(backend) == [((1, 5),), ((1, 2),)]
    said = [record.getMessage() for record in caplog.records if record.name == "trioton.jax"]
    assert [text.split(" in ")[0] for text in said if "compiled for the shapes" in text] == [
        f"model 'm': compiled for the shapes [1, {width}]" for width in (2, 3, 4, 5, 2)
    ]
    assert len([text for text in said if "MAX_COMPILED_SHAPES" in text]) == 1


@pytest.mark.parametrize("width", [0, 3, 6])
async def test_sizes_that_the_symbols_do_not_allow_are_the_clients_mistake(width: int, tmp_path: Path) -> None:
    scope = export.SymbolicScope(["n <= 4", "mod(n, 2) == 0"])
    save(tmp_path, lambda *, X: {"Y": X + 1}, X=spec("b, n", scope=scope))  # noqa: N803
    async with loaded(JaxBackend, instance(ANY_SIZE, tmp_path)) as backend:
        with pytest.raises(
            InvalidArgument, match=rf"model 'm' was not exported for inputs of the shapes \[1, {width}\]"
        ):
            await ask(backend, X=rows_of(1, width))
        assert (await ask(backend, X=rows_of(1, 2)))["Y"].tolist() == [[1, 2]]


async def test_a_batch_larger_than_the_function_allows_is_found_at_load(tmp_path: Path) -> None:
    save(tmp_path, lambda *, X: {"Y": X + 1}, X=spec("b, 3", scope=export.SymbolicScope(["b <= 4"])))  # noqa: N803
    said = await refused(InvalidArgument, ROWS, tmp_path)
    assert "compiling for the shapes [6, 3]: the constraints on its symbolic dimensions do not allow them" in said


async def test_instances_share_what_is_compiled_and_the_last_lets_go(tmp_path: Path) -> None:
    identity(tmp_path, DataType.FP32, "b, 3")
    shared = instance(ROWS, tmp_path)
    async with loaded(JaxBackend, shared) as one:
        async with loaded(JaxBackend, shared) as other:
            assert isinstance(one, JaxBackend)
            assert isinstance(other, JaxBackend)
            assert one._loaded is not None
            assert one._loaded is other._loaded
            function = one._loaded.function
        assert function.exported.mlir_module_serialized
        assert (await ask(one, X=rows_of(2)))["Y"].tolist() == rows_of(2).tolist()
    assert not function.exported.mlir_module_serialized


async def test_the_answer_does_not_lie_in_the_memory_of_the_request(tmp_path: Path) -> None:
    """Which may be a region that its client writes to again."""
    identity(tmp_path, DataType.FP32, "b, 3")
    memory = np.zeros(6 * 3 * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    given = memory[start : start + 6 * 3 * 4].view(np.float32).reshape(6, 3)
    async with loaded(JaxBackend, instance(ROWS, tmp_path)) as backend:
        found = (await ask(backend, X=given))["Y"]
    given[:] = 7
    assert not np.shares_memory(found, given)
    assert found.tolist() == np.zeros((6, 3)).tolist()


WEIGHED = """
max_batch_size: 4
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
LAYER = {"dense": {"kernel": rows_of(3, 2), "bias": np.array([1, 2], ml_dtypes.bfloat16)}, "scale": np.array(2.0)}


def weighed(folder: Path, weights: dict[str, Any]) -> None:
    def function(layer: Any, x: Any) -> Any:
        dense = layer["dense"]
        return ((x @ dense["kernel"] + dense["bias"]) * layer["scale"]).astype(jnp.float32)

    with jax.enable_x64(True):
        known = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), LAYER)
    path = save(folder, function, known, spec("b, 3"))
    np.savez(path.with_suffix(".npz"), **weights)


def flat(tree: Any) -> dict[str, Any]:
    """As the documentation says it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


async def test_weights_of_a_file_of_their_own_are_no_inputs(tmp_path: Path) -> None:
    weighed(tmp_path, flat(LAYER))
    assert names(await complete("", tmp_path)) == (["INPUT__0"], ["OUTPUT__0"])
    config = WEIGHED.replace("INPUT__0", "ARGS[1]")
    for each in (WEIGHED, config):
        async with loaded(JaxBackend, instance(each, tmp_path)) as backend:
            name = "INPUT__0" if each is WEIGHED else "ARGS[1]"
            found = (await ask(backend, **{name: rows_of(2)}))["OUTPUT__0"]
            assert found.tolist() == ((rows_of(2) @ rows_of(3, 2) + [1, 2]) * 2).tolist()
            (usage,) = backend.memory_usage()
            assert (usage.type, usage.byte_size) == ("CPU", 6 * 4 + 2 * 2 + 8)
        assert backend.memory_usage() == ()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"scale": None}, "missing are: scale; unknown are: none"),
        ({"more": np.zeros(1)}, "missing are: none; unknown are: more"),
        ({"scale": np.zeros(1)}, r"the function expects float64[] as 'scale', the file has float64[1]"),
        ({"dense/kernel": rows_of(3, 2).astype(np.float64)}, "expects float32[3, 2] as 'dense/kernel'"),
    ],
)
async def test_weights_that_are_not_the_functions_are_refused(
    changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    given = {name: array for name, array in (flat(LAYER) | changed).items() if array is not None}
    weighed(tmp_path, given)
    assert says in await refused(InvalidArgument, WEIGHED, tmp_path)
    with pytest.raises(InvalidArgument, match=r"model\.npz"):
        await JaxBackend.check_model(instance(WEIGHED, tmp_path).source)


async def test_a_broken_file_of_weights_is_said_to_be_one(tmp_path: Path) -> None:
    weighed(tmp_path, flat(LAYER))
    (tmp_path / "1" / "model.npz").write_bytes(b"nothing")
    assert "cannot be read as an archive of numpy.savez" in await refused(Internal, WEIGHED, tmp_path)


async def test_the_platforms_of_the_file_are_named_where_an_instance_has_another(tmp_path: Path) -> None:
    path = identity(tmp_path, DataType.FP32, "b, 3")
    said = await refused(InvalidArgument, ROWS, tmp_path, InstanceKind.GPU)
    assert "it was exported for cpu, and instance 'm_0_0' of KIND_GPU needs cuda or rocm" in said
    function = exported(lambda X: {"Y": X}, X=spec("b, 3"), platforms=["tpu", "cuda"])  # noqa: N803
    path.write_bytes(function.serialize())
    said = await refused(InvalidArgument, ROWS, tmp_path)
    assert "it was exported for tpu, cuda, and instance 'm_0_0' of KIND_CPU needs cpu" in said
    await JaxBackend.check_model(instance(ROWS, tmp_path).source)  # it may be for another machine


async def test_a_model_that_picks_its_device_takes_the_first_of_its_platforms_that_is_here(tmp_path: Path) -> None:
    path = identity(tmp_path, DataType.FP32, "b, 3")
    path.write_bytes(exported(lambda X: {"Y": X}, X=spec("b, 3"), platforms=["tpu", "cpu"]).serialize())  # noqa: N803
    async with loaded(JaxBackend, instance(ROWS, tmp_path, InstanceKind.MODEL)) as backend:
        assert (await ask(backend, X=rows_of(2)))["Y"].tolist() == rows_of(2).tolist()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU")
async def test_without_a_gpu_the_error_says_what_there_is(tmp_path: Path) -> None:
    path = identity(tmp_path, DataType.FP32, "b, 3")
    path.write_bytes(exported(lambda X: {"Y": X}, X=spec("b, 3"), platforms=["cuda"]).serialize())  # noqa: N803
    for kind in (InstanceKind.GPU, InstanceKind.MODEL):
        said = await refused(Unavailable, ROWS, tmp_path, kind)
        assert f"needs device 0 of cuda, but the installed jax {jax.__version__} finds 1 of cpu" in said


async def test_files_that_this_version_cannot_run_are_refused_by_what_is_wrong(tmp_path: Path) -> None:
    path = identity(tmp_path, DataType.FP32, "b, 3")
    function = export.deserialize(bytearray(path.read_bytes()))
    path.write_bytes(dataclasses.replace(function, calling_convention_version=99).serialize())
    assert "has the calling convention 99, and the installed jax" in await refused(Internal, ROWS, tmp_path)
    path.write_bytes(dataclasses.replace(function, nr_devices=2).serialize())
    assert "exported for 2 devices at once" in await refused(Unsupported, ROWS, tmp_path)
    path.write_bytes(dataclasses.replace(function, mlir_module_serialized=b"rubbish").serialize())
    assert "JAX fails in compiling for the shapes [6, 3]" in await refused(Internal, ROWS, tmp_path)
    for length in (0, 100, 1000):
        path.write_bytes(function.serialize()[:length])
        said = await refused(Internal, ROWS, tmp_path)
        assert f"cannot be read as a function of jax.export by the installed jax {jax.__version__}" in said


async def test_datatypes_that_the_protocol_lacks_are_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, lambda *, X: {"Y": X}, X=jax.ShapeDtypeStruct((3,), jnp.int4))  # noqa: N803
    assert "'X' has the datatype int4" in await refused(Unsupported, ROWS, tmp_path)
    save(tmp_path, lambda *, X: {"Y": jax.random.normal(X)}, X=jax.eval_shape(lambda: jax.random.key(0)))  # noqa: N803
    with pytest.raises(Unsupported, match="'X' has the datatype key<fry>"):
        await complete("", tmp_path)


async def test_options_of_the_compiler_reach_it(tmp_path: Path) -> None:
    identity(tmp_path, DataType.FP32, "b, 3")
    right, wrong = (
        ROWS + parameter("COMPILER_OPTIONS", text.replace('"', '\\"'))
        for text in ('{"xla_cpu_enable_fast_math": true}', '{"no_such": 1}')
    )
    async with loaded(JaxBackend, instance(right, tmp_path)) as backend:
        assert (await ask(backend, X=rows_of(2)))["Y"].tolist() == rows_of(2).tolist()
    assert "No such compile option: 'no_such'" in await refused(Internal, wrong, tmp_path)


async def test_two_instances_that_want_one_new_shape_compile_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity(tmp_path, DataType.FP32, "b, n")
    shared = instance(ANY_SIZE, tmp_path)
    async with loaded(JaxBackend, shared) as one, loaded(JaxBackend, shared) as other:
        with caplog.at_level(logging.INFO, "trioton.jax"):
            async with trio.open_nursery() as nursery:
                for backend in (one, other):
                    nursery.start_soon(infer, backend, request_of(("X", rows_of(1, 40))))
    said = [record.getMessage() for record in caplog.records if "compiled for the shapes" in record.getMessage()]
    assert len(said) == 1
