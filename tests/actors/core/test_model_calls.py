"""Models that call the server's models: errors told apart, loads that wait for each other, calls while it stops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.server_core import ControlMode
from backends.interface import BatchResult
from backends.services import CallRefused, Execution, ModelCaller, ModelNotReady
from protocol.core import LoadParameters
from protocol.errors import InvalidArgument, ServerError, Unavailable
from protocol.messages import InferenceRequest
from tests.actors.core.test_server_core import OVERRIDE, PBTXT, add_model, running
from tests.actors.fakes import TIMING, FakeBackend, fake_backend, request
from tests.actors.lifecycle.test_composing import add_ensemble


def models_of(backend: FakeBackend) -> ModelCaller:
    services = backend.spec.source.services
    assert services is not None
    return services.models


def ask(model: str, *, id: str = "") -> InferenceRequest:
    asked = request(id=id)
    asked.model_name = model
    return asked


async def test_errors_are_told_apart(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A model that does not serve, a request that it never gets, and an error of its own."""

    def fail(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        if requests[0].id == "bad":
            raise InvalidArgument("mine")

    backend = fake_backend(on_execute=fail)
    add_model(tmp_path, "m")
    async with running(tmp_path, backend=backend) as core:
        models = models_of(backend.made[0])
        assert (await models.infer(ask("m", id="good"))).id == "good"
        assert models.is_decoupled("m", -1) is False
        for name, version in (("nobody", -1), ("m", 7)):
            asked = ask(name)
            asked.model_version = version
            with pytest.raises(ModelNotReady):
                await models.infer(asked)
            with pytest.raises(ModelNotReady):
                models.is_decoupled(name, version)
        unshaped = ask("m")
        unshaped.inputs = []
        with pytest.raises(CallRefused) as refused:
            await models.infer(unshaped)
        assert isinstance(refused.value.error, InvalidArgument)
        with pytest.raises(InvalidArgument, match="mine"):
            await models.infer(ask("m", id="bad"))
        (statistics,) = core.model_statistics("m")
        assert statistics.inference_stats.success.count == 1


class Nested(FakeBackend):
    """Calls the model that its own model's name ends with, if it has the form `calls_<name>`."""

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        source = self.spec.source
        if not source.name.startswith("calls_"):
            return await super().execute(requests)
        await trio.sleep(1)
        caller = Execution(source, source.name, self.spec.name)
        answers: list[ServerError | object] = []
        for _ in requests:
            try:
                answers.append(await models_of(self).infer(ask(source.name.removeprefix("calls_")), caller))
            except CallRefused as refused:
                answers.append(refused.error)
            except ServerError as error:
                answers.append(error)
        return BatchResult(answers, TIMING)  # type: ignore[arg-type]  # a response or an error each


def nested() -> type[FakeBackend]:
    return type("TestBackend", (Nested,), {"made": [], "batches": [], "seconds": 1.0})


async def test_a_chain_of_calls_is_answered(tmp_path: Path, autojump_clock: MockClock) -> None:
    for name in ("calls_calls_m", "calls_m", "m"):
        add_model(tmp_path, name)
    async with running(tmp_path, backend=nested()) as core:
        for _ in range(2):
            assert (await core.infer(ask("calls_calls_m"))).outputs[0].shape == (1, 2)


@pytest.mark.parametrize(
    "config",
    [
        PBTXT,
        PBTXT.replace("dynamic_batching {", "dynamic_batching { preserve_ordering: true ")
        + "instance_group [ { count: 3 } ]",
    ],
)
async def test_a_call_that_would_wait_for_itself_is_refused(
    tmp_path: Path, autojump_clock: MockClock, config: str
) -> None:
    class Myself(nested()):  # type: ignore[misc]  # mypy knows no bases that are computed
        async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
            with pytest.raises(CallRefused) as refused:
                await models_of(self).infer(ask("m"), Execution(self.spec.source, "m", self.spec.name))
            raise refused.value.error

    add_model(tmp_path, "m", config=config)
    async with running(tmp_path, backend=Myself) as core:
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"could never be answered: .* \(m → m\)"):
                await core.infer(ask("m"))


async def test_an_accepted_request_may_call_while_the_server_stops(tmp_path: Path, autojump_clock: MockClock) -> None:
    """No model goes before it; and nobody else may call."""
    for name in ("m", "calls_m"):
        add_model(tmp_path, name)
    answered = False

    async def run() -> None:
        nonlocal answered
        assert (await core.infer(ask("calls_m"))).outputs
        answered = True

    async with trio.open_nursery() as nursery, running(tmp_path, backend=nested()) as core:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        core.stop()
        with pytest.raises(Unavailable):
            await core.infer(ask("m"))
    assert answered


class Loading(FakeBackend):
    """Its models load others while they are loaded: (this one, that one)."""

    orders: tuple[tuple[str, str], ...]

    async def load(self) -> None:
        name = self.spec.source.name
        for loader, other in self.orders:
            if loader == name:
                await models_of(self).load_model(other, LoadParameters(), loading=name)
        await trio.sleep(1)
        await super().load()


def loading(*orders: tuple[str, str]) -> type[Loading]:
    return type("TestBackend", (Loading,), {"made": [], "batches": [], "orders": orders})


async def test_a_model_loads_others_while_it_is_loaded(tmp_path: Path, autojump_clock: MockClock) -> None:
    """More than may be loaded at a time, each by the one before."""
    names = [f"m{number}" for number in range(8)]
    for name in names:
        add_model(tmp_path, name)
    backend = loading(*pairwise(names))
    async with running(tmp_path, backend=backend, mode=ControlMode.EXPLICIT) as core:
        await core.load_model("m0")
        assert all([await models_of(backend.made[0]).is_model_ready(name, -1) for name in names])
        await models_of(backend.made[0]).unload_model("m7")
        await wait_all_tasks_blocked()
        assert not await models_of(backend.made[0]).is_model_ready("m7", -1)
        assert not await models_of(backend.made[0]).is_model_ready("unheard_of", -1)


@pytest.mark.parametrize("orders", [[("a", "a")], [("a", "b"), ("b", "a")], [("a", "b"), ("b", "c"), ("c", "b")]])
async def test_loads_that_would_wait_for_each_other_fail(
    tmp_path: Path, autojump_clock: MockClock, orders: list[tuple[str, str]]
) -> None:
    for name in "abc":
        add_model(tmp_path, name)
    async with running(tmp_path, backend=loading(*orders), mode=ControlMode.EXPLICIT) as core:
        for _ in range(2):
            with pytest.raises(InvalidArgument, match=r"the load of model '\w' would wait for itself: "):
                await core.load_model("a")


@pytest.mark.parametrize("first", ["a", "e"])
async def test_a_load_by_way_of_an_ensemble_does_not_wait_for_itself(
    tmp_path: Path, autojump_clock: MockClock, first: str
) -> None:
    """The ensemble needs the model that loads it, by way of another."""
    for name in "ab":
        add_model(tmp_path, name)
    add_ensemble(tmp_path, "e", "a")
    async with running(tmp_path, backend=loading(("a", "b"), ("b", "e")), mode=ControlMode.EXPLICIT) as core:
        for _ in range(2):
            with pytest.raises(InvalidArgument, match=r"would wait for itself: e → a → b → e|'a' which has no loaded"):
                await core.load_model(first)
    async with running(tmp_path, backend=loading(("a", "e")), mode=ControlMode.EXPLICIT) as core:
        with pytest.raises(InvalidArgument, match="would wait for itself: e → a → e"):
            await core.load_model("a")


async def test_a_model_that_serves_is_loaded_anew_with_the_ensemble_that_needs_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The ensemble does not wait for what serves already."""
    add_model(tmp_path, "a")
    add_ensemble(tmp_path, "e", "a")
    backend = loading()
    async with running(tmp_path, backend=backend, mode=ControlMode.EXPLICIT, load=["a"]) as core:
        backend.orders += (("a", "e"),)
        await core.load_model(
            "a", LoadParameters(config=OVERRIDE.replace('"max_batch_size": 2', '"max_batch_size": 4'))
        )
        assert core.is_model_ready("e")


async def test_nothing_is_loaded_by_a_model_while_the_server_starts(tmp_path: Path, autojump_clock: MockClock) -> None:
    for name in "ab":
        add_model(tmp_path, name)
    async with running(tmp_path, backend=loading(("a", "b")), mode=ControlMode.EXPLICIT, load=["a"]) as core:
        (entry,) = [entry for entry in await core.repository_index() if entry.name == "a"]
        assert "when the server has started, not before" in entry.reason
        await core.load_model("a")
        assert core.is_model_ready("b")


async def test_only_in_explicit_mode(tmp_path: Path) -> None:
    backend = fake_backend()
    add_model(tmp_path, "m")
    async with running(tmp_path, backend=backend):
        for call in (
            models_of(backend.made[0]).load_model("m", LoadParameters()),
            models_of(backend.made[0]).unload_model("m"),
        ):
            with pytest.raises(Unavailable, match="explicit model load / unload is not allowed"):
                await call
