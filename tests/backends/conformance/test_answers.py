"""What models answer is what their framework answers when it is called directly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import trio

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from tests.backends.conformance.format import Format
from tests.backends.conformance.formats import each_format, each_of
from tests.backends.conformance.serving import (
    Gate,
    assert_same,
    gated,
    model_of,
    one_instance,
    random_array,
    read,
    sample,
    serving,
)
from tests.examples.loading import load_example

FLOATS = (DataType.FP16, DataType.FP32, DataType.FP64)


@each_of("model", lambda form: sorted(form.models), label=str)
async def test_the_models_of_the_examples(form: Format, model: str, tmp_path: Path) -> None:
    form.example_model(model, tmp_path / "m")
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    example, names = load_example("formats/three_models"), [entry.name for entry in config.input]
    requests = [sample(config, rows) for rows in (1, 3, 8, 2)]
    async with serving(tmp_path) as core:
        for inputs, found in zip(requests, await model_of(core).infer_many(requests), strict=True):
            assert not isinstance(found, Exception), found
            assert_same(found, direct(inputs), form.tolerance)
            # Both could be wrong in the same way, so numpy judges, too; not every format has the inputs' own names.
            named = dict(zip(example.sample(model, 1), (inputs[name] for name in names), strict=True))
            assert_same(found, example.ANSWERS[model](named), tolerance=1e-4)


@each_format(lambda form: "image" in form.models and "text" not in form.models)
def test_an_example_without_strings_says_why(form: Format) -> None:
    example = load_example(f"formats/{form.example}")
    assert not hasattr(example, "text")
    assert form.no_text
    assert form.no_text in " ".join((example.__doc__ or "").split())


@each_of("datatype", lambda form: sorted(form.datatypes, key=lambda each: each.number), label=lambda each: each.name)
async def test_every_datatype_goes_in_and_comes_out(form: Format, datatype: DataType, tmp_path: Path) -> None:
    """In batches, one after the other, and with few elements or none."""
    form.identity(tmp_path / "m", datatype)
    x, y = read(tmp_path / "m").input[0].name, read(tmp_path / "m").output[0].name
    random = np.random.default_rng(1)
    sizes = ((1, 4), (2, 4), (3, 4), (1, 1), (1, 0), (8, 5)) if form.has_variable_dims else ((1, 1), (3, 1), (8, 1))
    requests = [{x: random_array(random, datatype, shape)} for shape in sizes if form.has_empty_dims or 0 not in shape]
    async with serving(tmp_path) as core:
        for given, found in zip(requests, await model_of(core).infer_many(requests), strict=True):
            assert not isinstance(found, Exception), found
            assert_same(found, {y: given[x]})


@each_of("datatype", lambda form: [each for each in FLOATS if each in form.datatypes], label=lambda each: each.name)
async def test_special_numbers_pass_unchanged(form: Format, datatype: DataType, tmp_path: Path) -> None:
    form.identity(tmp_path / "m", datatype)
    x, y = read(tmp_path / "m").input[0].name, read(tmp_path / "m").output[0].name
    tiny = np.finfo(datatype.dtype).tiny / 2
    array = np.array([[np.nan], [np.inf], [-np.inf], [-0.0], [tiny]], datatype.dtype)
    async with serving(tmp_path) as core:
        found = await model_of(core).infer({x: array})
    assert found[y].tobytes() == array.tobytes()


@each_format(lambda form: DataType.FP32 in form.datatypes and form.has_variable_dims)
async def test_shapes_may_differ_from_request_to_request(form: Format, tmp_path: Path) -> None:
    """Those that wait together, too: requests of one shape make a batch."""
    form.identity(tmp_path / "m", DataType.FP32, dims=2)
    x, y = read(tmp_path / "m").input[0].name, read(tmp_path / "m").output[0].name
    random = np.random.default_rng(2)
    shapes = [(1, 2, 3), (2, 3, 2), (1, 2, 3), (1, 50, 7), (2, 3, 2), (1, 1, 1), (3, 2, 3)]
    requests = [{x: random_array(random, DataType.FP32, shape)} for shape in shapes]
    async with serving(tmp_path) as core:
        for given, found in zip(requests, await model_of(core).infer_many(requests), strict=True):
            assert not isinstance(found, Exception), found
            assert_same(found, {y: given[x]})


@each_format()
async def test_requests_that_wait_become_one_batch_and_each_gets_its_rows(form: Format, tmp_path: Path) -> None:
    form.rows_model(tmp_path / "m")
    one_instance(tmp_path / "m")
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    requests = [sample(config, rows, seed=rows) for rows in (1, 2, 3)]
    gate = Gate()
    async with serving(tmp_path, backends=gated(form, gate)) as core, trio.open_nursery() as nursery:
        nursery.start_soon(model_of(core).infer, sample(config, 1))
        await gate.wait_batches(1)

        async def ask() -> None:
            for inputs, found in zip(requests, await model_of(core).infer_many(requests), strict=True):
                assert not isinstance(found, Exception), found
                assert_same(found, direct(inputs), form.tolerance)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        gate.open()
        await gate.wait_batches(2)
    rows = [sorted(request.inputs[0].shape[0] for request in batch) for batch in gate.batches]
    assert rows == [[1], [1, 2, 3]]


@each_format()
async def test_only_wanted_outputs_are_answered(form: Format, tmp_path: Path) -> None:
    form.rows_model(tmp_path / "m")
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    inputs, wanted = sample(config, 2), config.output[-1].name
    async with serving(tmp_path) as core:
        found = await model_of(core).infer(inputs, outputs=[wanted])
    assert_same(found, {wanted: direct(inputs)[wanted]}, form.tolerance)


@each_format()
async def test_a_wrong_request_is_refused_and_its_neighbours_are_not(form: Format, tmp_path: Path) -> None:
    """A client's mistake names the input, and never reaches the model."""
    form.rows_model(tmp_path / "m")
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    right, name = sample(config, 2), config.input[0].name
    wrong = [
        {**right, name: right[name][:, :-1]},
        {**right, name: right[name].astype(np.float64)},
        {**right, "UNKNOWN": right[name]},
        {**right, name: np.concatenate([right[name]] * 8)},
    ]
    async with serving(tmp_path) as core:
        first, *errors, last = await model_of(core).infer_many([right, *wrong, right])
    for error in errors:
        assert isinstance(error, InvalidArgument), error
        assert "'m'" in error.message or "m" in error.message.split()
    for found in (first, last):
        assert not isinstance(found, Exception), found
        assert_same(found, direct(right), form.tolerance)


@each_format()
async def test_no_batch_has_more_rows_than_the_configuration_allows(form: Format, tmp_path: Path) -> None:
    form.rows_model(tmp_path / "m")
    path = tmp_path / "m" / "config.pbtxt"
    assert "max_batch_size: 8" in path.read_text()
    path.write_text(path.read_text().replace("max_batch_size: 8", "max_batch_size: 1"))
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    requests = [sample(config, 1, seed=seed) for seed in range(5)]
    async with serving(tmp_path) as core:
        for inputs, found in zip(requests, await model_of(core).infer_many(requests), strict=True):
            assert not isinstance(found, Exception), found
            assert_same(found, direct(inputs), form.tolerance)
        assert model_of(core).statistics.execution_count == len(requests)
