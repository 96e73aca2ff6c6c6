"""Instances beside each other, and requests whose callers go away."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.backends.conformance.format import Format
from tests.backends.conformance.formats import each_format
from tests.backends.conformance.serving import (
    Gate,
    assert_same,
    gated,
    model_of,
    one_instance,
    read,
    sample,
    serving,
)


@each_format()
async def test_instances_run_at_the_same_time(form: Format, tmp_path: Path) -> None:
    """As many batches are out as there are instances; each gives its own callers their own answers."""
    form.rows_model(tmp_path / "m")
    one_instance(tmp_path / "m", count=3)
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    gate = Gate()
    async with serving(tmp_path, backends=gated(form, gate)) as core, trio.open_nursery() as nursery:

        async def ask(seed: int) -> None:
            for turn in range(5):
                inputs = sample(config, 1 + seed % 4, seed=100 * turn + seed)
                assert_same(await model_of(core).infer(inputs), direct(inputs), form.tolerance)

        for seed in range(3):
            nursery.start_soon(ask, seed)
            await gate.wait_batches(seed + 1)
        gate.open()
        for seed in range(3, 20):
            nursery.start_soon(ask, seed)


@each_format()
async def test_a_request_that_waits_between_batches_and_loses_its_caller_never_runs(
    form: Format, tmp_path: Path
) -> None:
    form.rows_model(tmp_path / "m")
    one_instance(tmp_path / "m")
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    gate, gone = Gate(), trio.CancelScope()
    async with serving(tmp_path, backends=gated(form, gate)) as core, trio.open_nursery() as nursery:

        async def ask(seed: int) -> None:
            inputs = sample(config, 1, seed=seed)
            assert_same(await model_of(core).infer(inputs, id=str(seed)), direct(inputs), form.tolerance)

        async def go_away() -> None:
            with gone:
                await model_of(core).infer(sample(config, 1, seed=9), id="gone")

        nursery.start_soon(ask, 1)
        await gate.wait_batches(1)
        nursery.start_soon(ask, 2)
        nursery.start_soon(go_away)
        await trio.testing.wait_all_tasks_blocked()
        gone.cancel()
        await trio.testing.wait_all_tasks_blocked()
        gate.open()
    assert gone.cancelled_caught
    assert [[request.id for request in batch] for batch in gate.batches] == [["1"], ["2"]]


@each_format()
async def test_an_instance_serves_on_after_the_callers_of_its_batch_have_gone(form: Format, tmp_path: Path) -> None:
    form.rows_model(tmp_path / "m")
    one_instance(tmp_path / "m")
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    gate = Gate()
    async with serving(tmp_path, backends=gated(form, gate)) as core:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model_of(core).infer, sample(config, 2))
            await gate.wait_batches(1)
            nursery.cancel_scope.cancel()
        gate.open()
        inputs = sample(config, 3)
        assert_same(await model_of(core).infer(inputs), direct(inputs), form.tolerance)


@each_format()
async def test_an_unload_ends_what_was_accepted(form: Format, tmp_path: Path) -> None:
    form.rows_model(tmp_path / "m")
    one_instance(tmp_path / "m")
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    gate, answered = Gate(), 0
    async with serving(tmp_path, backends=gated(form, gate)) as core, trio.open_nursery() as nursery:

        async def ask(seed: int) -> None:
            nonlocal answered
            inputs = sample(config, 1, seed=seed)
            assert_same(await model_of(core).infer(inputs), direct(inputs), form.tolerance)
            answered += 1

        for seed in range(4):
            nursery.start_soon(ask, seed)
        await gate.wait_batches(1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(core.unload_model, "m")
        await trio.testing.wait_all_tasks_blocked()
        gate.open()
    assert answered == 4
