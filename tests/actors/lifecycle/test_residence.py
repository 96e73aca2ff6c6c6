"""More models than the memory budget has room for: who is loaded when, and that no request notices."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from actors.core.model_calls import ModelCalls
from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from actors.lifecycle.residence import ResidenceSnapshot
from actors.lifecycle.table import EVICTED
from backends.registry import BackendRegistry
from protocol.core import LoadParameters, ModelIndex
from protocol.errors import DeadlineExceeded, Internal, InvalidArgument, NotFound, ServerError
from protocol.messages import InferenceRequest, Tensor
from tests.actors.core.test_server_core import PBTXT, add_model
from tests.actors.fakes import FakeBackend, fake_backend

SIZE = 40
BUDGET = 100  # two of them


def sized(size: int = SIZE) -> str:
    return PBTXT + f'\nparameters {{ key: "memory_bytes" value {{ string_value: "{size}" }} }}\n'


def ensemble(*models: str) -> str:
    """One step after the other."""
    names = ["IN", *(f"between{i}" for i in range(1, len(models))), "OUT"]
    steps = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{names[i]}" }} '
        f'output_map {{ key: "OUT" value: "{names[i + 1]}" }} }}'
        for i, model in enumerate(models)
    )
    tensors = '{ name: "%s" data_type: TYPE_FP32 dims: [ 2 ] }'
    return (
        f'platform: "ensemble" max_batch_size: 4 input [ {tensors % "IN"} ] output [ {tensors % "OUT"} ]\n'
        f"ensemble_scheduling {{ step [ {steps} ] }}\n"
    )


def request(model: str, value: float = 1.0, **more: object) -> InferenceRequest:
    made = InferenceRequest(model, [Tensor.from_numpy("IN", np.full((1, 2), value, np.float32))])
    return replace(made, **more)


async def ask(core: ServerCore, model: str, value: float = 1.0) -> float:
    response = await core.infer(request(model, value))
    return float(response.outputs[0].as_numpy()[0, 0])


def residence(core: ServerCore) -> ResidenceSnapshot:
    found = core.residence()
    assert found is not None
    return found


def resident(core: ServerCore) -> list[str]:
    return list(residence(core).sizes)


async def eventually(condition: Callable[[], bool]) -> None:
    """Loads and unloads have threads to wait for, whose end no event tells."""
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 (as just said)
            await trio.sleep(0.01)


async def settled(core: ServerCore) -> list[str]:
    """The resident models, when no more of them go than have to."""
    await eventually(lambda: residence(core).used <= residence(core).limit)
    return resident(core)


@asynccontextmanager
async def running(
    repository: Path,
    backend: type[FakeBackend] | None = None,
    *,
    mode: ControlMode = ControlMode.NONE,
    budget: int | None = BUDGET,
    load: Sequence[str] = (),
) -> AsyncIterator[ServerCore]:
    settings = CoreSettings((repository,), control_mode=mode, model_memory_budget=budget, load_models=tuple(load))
    core = ServerCore(settings, BackendRegistry({"fake": backend or fake_backend()}))
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        yield core
        core.stop()


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for name in "abc":
        add_model(tmp_path, name, config=sized())
    return tmp_path


async def test_at_the_start_each_is_loaded_once_and_no_more_stay_than_fit(three: Path) -> None:
    """Those that went are ready all the same, and tell all that needs no instance."""
    async with running(three) as core:
        stay = await settled(core)
        assert len(stay) == 2
        (gone,) = set("abc") - set(stay)
        assert core.is_ready()
        assert await core.check_ready()
        assert await core.check_model_ready(gone)
        assert core.is_model_ready(gone, 1)
        assert core.model_metadata(gone).versions == ("1",)
        assert core.model_config(gone)["max_batch_size"] == 4
        assert not core.is_decoupled(gone)
        assert [each.name for each in core.model_statistics()] == ["a", "b", "c"]
        index = {entry.name: entry for entry in await core.repository_index()}
        assert index[gone] == ModelIndex(gone, "1", "UNAVAILABLE", EVICTED)
        assert {index[name].state for name in stay} == {"READY"}
        assert [entry.name for entry in await core.repository_index(ready=True)] == stay


async def test_a_request_loads_its_model_and_the_one_not_used_for_longest_goes(three: Path) -> None:
    async with running(three) as core:
        for name in "abcab":
            assert await ask(core, name, 7) == 7
        assert await settled(core) == ["a", "b"]
        await ask(core, "a")
        await ask(core, "c")
        assert await settled(core) == ["a", "c"]
        now = residence(core)
        assert (now.limit, now.used, now.waiting) == (BUDGET, 2 * SIZE, 0)
        assert now.evictions["b"] >= 1
        assert now.demand_loads["c"] >= 1


async def test_counts_go_on_where_they_were(three: Path) -> None:
    async with running(three) as core:
        for name in "abcabc":
            await ask(core, name)
        assert [each.inference_count for each in core.model_statistics()] == [2, 2, 2]
        snapshots = {each.model: each.statistics.inference_count for each in core.snapshots()}
        assert snapshots == {"a": 2, "b": 2, "c": 2}


class Gate:
    """Lets executions of some models wait; notes the order in which models are loaded and run."""

    def __init__(self, *held: str) -> None:
        self.held = set(held)
        self.open = trio.Event()
        self.running: set[str] = set()
        self.log: list[str] = []

        class Backend(fake_backend()):  # type: ignore[misc]  # a class made for one test
            async def load(this) -> None:  # noqa: N805 (self is the gate)
                await super().load()
                self.log.append(f"load {this.spec.config.name}")

            async def execute(this, requests):  # type: ignore[no-untyped-def]  # noqa: N805
                name = this.spec.config.name
                self.log.append(f"run {name}")
                self.running.add(name)
                if name in self.held:
                    await self.open.wait()
                assert this.is_loaded
                result = await super().execute(requests)
                assert this.is_loaded
                return result

        self.backend: type[FakeBackend] = Backend

    async def wait_running(self, *names: str) -> None:
        await eventually(lambda: self.running.issuperset(names))


async def test_what_is_in_use_stays_and_who_comes_waits(three: Path) -> None:
    """Two models are busy: the third one's request waits until one of them is done, and nobody fails."""
    gate = Gate("a", "b")
    answers: list[str] = []

    async def asks(name: str) -> None:
        await ask(core, name)
        answers.append(name)

    async with running(three, gate.backend) as core:
        async with trio.open_nursery() as requests:
            requests.start_soon(asks, "a")
            requests.start_soon(asks, "b")
            await gate.wait_running("a", "b")
            requests.start_soon(asks, "c")
            await eventually(lambda: residence(core).waiting > 0)
            await wait_all_tasks_blocked()
            assert resident(core) == ["a", "b"]
            assert not answers
            gate.open.set()
        assert sorted(answers) == ["a", "b", "c"]
        assert "c" in await settled(core)


async def test_a_model_that_is_always_busy_keeps_nobody_out(tmp_path: Path) -> None:
    """One model fits. Its clients ask without pause, more than one at a time: the other one's turn comes."""
    for name in "ab":
        add_model(tmp_path, name, config=sized())
    is_over = False

    async def ask_on(count: list[int]) -> None:
        while not is_over:
            assert await ask(core, "a", 3) == 3
            count[0] += 1

    async def served(least: int) -> None:
        await eventually(lambda: all(count[0] >= least for count in counts))

    async with running(tmp_path, fake_backend(seconds=0.002), budget=SIZE) as core:
        counts = [[0] for _ in range(4)]
        async with trio.open_nursery() as clients:
            for count in counts:
                clients.start_soon(ask_on, count)
            for number in range(1, 6):
                await served(10 * number)
                assert await ask(core, "b", 5) == 5
            is_over = True
        assert residence(core).demand_loads["b"] == 5


async def test_one_load_is_enough_for_all_that_wait_for_it(three: Path) -> None:
    gate = Gate()
    async with running(three, gate.backend) as core:
        for name in "abc":
            await ask(core, name)
        assert await settled(core) == ["b", "c"]
        gate.log.clear()
        async with trio.open_nursery() as requests:
            for _ in range(10):
                requests.start_soon(ask, core, "a")
        assert gate.log.count("load a") == 1


async def test_a_request_waits_no_longer_than_its_timeout(three: Path) -> None:
    """Nor than its client; neither leaves anything behind."""
    gate = Gate("a", "b")
    async with running(three, gate.backend) as core, trio.open_nursery() as requests:
        requests.start_soon(ask, core, "a")
        requests.start_soon(ask, core, "b")
        await gate.wait_running("a", "b")
        with pytest.raises(DeadlineExceeded, match="timeout of 20000 microseconds expired before model 'c'"):
            await core.infer(request("c", timeout_microseconds=20_000))
        with trio.move_on_after(0.02) as scope:
            await ask(core, "c")
        assert scope.cancelled_caught
        await eventually(lambda: residence(core).waiting == 0)
        assert resident(core) == ["a", "b"]
        gate.open.set()


async def test_a_model_that_fails_to_load_again(three: Path) -> None:
    """All that wait for it are told why; when it is mended, the next request gets its answer."""
    fails = False

    def on_load(backend: FakeBackend) -> None:
        if fails and backend.spec.config.name == "a":
            raise Internal("no such weights")

    async with running(three, fake_backend(on_load=on_load)) as core:
        for name in "abc":
            await ask(core, name)
        assert "a" not in await settled(core)
        fails = True
        errors: list[ServerError] = []

        async def refused() -> None:
            with pytest.raises(InvalidArgument, match="no such weights") as raised:
                await ask(core, "a")
            errors.append(raised.value)

        async with trio.open_nursery() as requests:
            for _ in range(5):
                requests.start_soon(refused)
        assert len(errors) == 5
        (entry,) = [each for each in await core.repository_index() if each.name == "a"]
        assert entry.state == "UNAVAILABLE"
        assert "no such weights" in entry.reason
        assert await ask(core, "b", 2) == 2
        fails = False
        assert await ask(core, "a", 4) == 4


async def test_an_ensemble_holds_all_that_it_is_composed_of(tmp_path: Path) -> None:
    """Its models are loaded with it, and none of them goes while it runs; it holds nothing itself."""
    for name in "abcd":
        add_model(tmp_path, name, config=sized())
    add_model(tmp_path, "ab", config=ensemble("a", "b"))
    add_model(tmp_path, "cd", config=ensemble("c", "d"))
    gate = Gate("b")
    async with running(tmp_path, gate.backend) as core:
        assert core.is_ready()
        async with trio.open_nursery() as requests:
            requests.start_soon(ask, core, "ab")
            await gate.wait_running("b")
            requests.start_soon(ask, core, "cd")
            await wait_all_tasks_blocked()
            assert [name for name in resident(core) if len(name) == 1] == ["a", "b"]
            gate.open.set()
        assert [name for name in await settled(core) if len(name) == 1] == ["c", "d"]
        assert await core.check_model_ready("ab")
        assert await core.check_ready()
        for _ in range(3):
            assert await ask(core, "ab", 2) == 2
            assert await ask(core, "cd", 3) == 3


async def test_a_model_that_is_called_is_loaded_whatever_room_there_is(three: Path) -> None:
    """Its caller runs and waits for it, so it waits for nobody; what is too much goes when the caller is done."""
    gate = Gate("a", "b")
    async with running(three, gate.backend) as core:
        calls = ModelCalls(core._running)
        async with trio.open_nursery() as requests:
            requests.start_soon(ask, core, "a")
            requests.start_soon(ask, core, "b")
            await gate.wait_running("a", "b")
            response = await calls.infer(request("c", 6))
            assert response.outputs[0].as_numpy()[0, 0] == 6
            gate.open.set()
        assert len(await settled(core)) == 2
        with pytest.raises(ServerError, match="'x' is not found"):
            await calls.infer(request("x"))


async def test_what_clients_load_makes_room_and_what_they_unload_stays_so(three: Path) -> None:
    async with running(three, mode=ControlMode.EXPLICIT) as core:
        for name in "abc":
            await core.load_model(name)
        assert await settled(core) == ["b", "c"]
        await core.unload_model("a")
        with pytest.raises(NotFound, match="'a' has no available versions"):
            await ask(core, "a")
        assert (await core.repository_index())[0].reason == "unloaded"
        await core.unload_model("b")
        await eventually(lambda: "b" not in resident(core))
        await core.load_model("a")
        assert await settled(core) == ["a", "c"]


async def test_what_a_load_call_has_given_is_not_lost(three: Path) -> None:
    """A model with an override is never unloaded for the budget: the repository could not bring it back."""
    config = json.dumps(
        {
            "backend": "fake",
            "max_batch_size": 2,
            "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}],
            "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}],
            "parameters": {"memory_bytes": {"string_value": str(SIZE)}},
        }
    )
    async with running(three, mode=ControlMode.EXPLICIT) as core:
        await core.load_model("a", LoadParameters(config))
        for name in "bc":
            await core.load_model(name)
        assert await settled(core) == ["a", "c"]
        assert core.model_config("a")["max_batch_size"] == 2


async def test_open_sequences_keep_their_model(three: Path) -> None:
    """Until they end: what they have built up would be lost with it."""
    add_model(three, "s", config=sized() + "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n")
    (three / "s" / "config.pbtxt").write_text(
        (three / "s" / "config.pbtxt").read_text().replace("dynamic_batching {\n}\n", "")
    )
    async with running(three) as core:
        await core.infer(request("s", sequence_id=1, sequence_start=True))
        for name in "abcab":
            await ask(core, name)
            assert "s" in resident(core)
        await core.infer(request("s", sequence_id=1, sequence_end=True))
        for name in "abc":
            await ask(core, name)
        assert "s" not in await settled(core)


async def test_a_model_larger_than_the_budget_is_loaded_alone(three: Path) -> None:
    add_model(three, "large", config=sized(3 * BUDGET))
    async with running(three) as core:
        for name in ("large", "a", "large", "b"):
            assert await ask(core, name, 2) == 2
        await ask(core, "large")
        assert resident(core) == ["large"]


async def test_a_load_may_have_to_stay_within_the_budget(three: Path) -> None:
    """It fails where all that holds memory is in use, also one of a model that needs others, and leaves nothing; idle
    models make room for it."""
    gate, within = Gate("a", "b"), LoadParameters(within_budget=True)
    add_model(three, "both", config=ensemble("c", "c"))
    async with running(three, gate.backend, mode=ControlMode.EXPLICIT, load=("a", "b")) as core:
        async with trio.open_nursery() as requests:
            requests.start_soon(ask, core, "a")
            requests.start_soon(ask, core, "b")
            await gate.wait_running("a", "b")
            for name in ("c", "both"):
                text = "out of memory: it needs 40 bytes of the memory budget, 80 of 100 cannot be freed now"
                with pytest.raises(InvalidArgument, match=text):
                    await core.load_model(name, within)
            assert sorted(resident(core)) == ["a", "b"]
            gate.open.set()
        await core.load_model("c", within)
        assert "c" in resident(core)
        assert residence(core).used <= BUDGET


@pytest.mark.parametrize("text", ["many", "-1", "1.5", "9" * 30])
async def test_a_size_that_is_none(tmp_path: Path, text: str) -> None:
    add_model(tmp_path, "m", config=sized().replace(f'"{SIZE}"', f'"{text}"'))
    async with running(tmp_path) as core:
        (entry,) = await core.repository_index()
        assert f"parameters['memory_bytes'] is to be a whole number of bytes, got '{text}'" in entry.reason


async def test_without_a_budget_everything_stays(three: Path) -> None:
    async with running(three, budget=None) as core:
        for name in "abcabc":
            await ask(core, name)
        assert core.residence() is None
        assert len(await core.repository_index(ready=True)) == 3


async def test_without_a_word_the_files_count(tmp_path: Path) -> None:
    """Once for each instance."""
    for name in "ab":
        model = add_model(tmp_path, name, config=PBTXT + "instance_group [ { count: 2 } ]\n")
        (model / "1" / "weights").write_bytes(b"x" * 300)
    async with running(tmp_path, budget=1000) as core:
        await settled(core)
        assert residence(core).sizes in ({"a": 600}, {"b": 600})


async def test_who_waits_when_the_server_stops_is_answered(three: Path) -> None:
    """It was accepted: its model is loaded for it."""
    gate = Gate("a", "b")
    answers: list[float] = []

    async def asks(name: str) -> None:
        answers.append(await ask(core, name, 3))

    async with running(three, gate.backend) as core, trio.open_nursery() as requests:
        for name in "ab":
            requests.start_soon(asks, name)
        await gate.wait_running("a", "b")
        requests.start_soon(asks, "c")
        await eventually(lambda: residence(core).waiting > 0)
        core.stop()
        gate.open.set()
    assert answers == [3, 3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_comes(tmp_path: Path, seed: int) -> None:
    """Clients that ask for models of all sizes, ensembles and ensembles of ensembles, go away, and load; models that
    call models: nobody fails, and in the end the account is right."""
    chance = random.Random(seed)
    models = "abcdef"
    for name in models:
        add_model(tmp_path, name, config=sized(chance.choice([10, 20, 40, 60, 90])))
    for name, composing in {"ab": ("a", "b"), "cde": ("c", "d", "e"), "nest": ("ab", "f")}.items():
        add_model(tmp_path, name, config=ensemble(*composing))
    names = [*models, "ab", "cde", "nest"]

    async def client(core: ServerCore, calls: ModelCalls) -> None:
        for _ in range(25):
            name = chance.choice(names)
            match chance.randrange(8):
                case 0:
                    with trio.move_on_after(chance.random() * 0.01):
                        await ask(core, name)
                case 1:
                    response = await calls.infer(request(name, 3))
                    assert response.outputs[0].as_numpy()[0, 0] == 3
                case 2:
                    await core.load_model(name)
                case _:
                    assert await ask(core, name, 5) == 5

    backend = fake_backend(seconds=0.001)
    async with running(tmp_path, backend, mode=ControlMode.EXPLICIT, load=["*"]) as core:
        calls = ModelCalls(core._running)
        async with trio.open_nursery() as clients:
            for _ in range(6):
                clients.start_soon(client, core, calls)
        await settled(core)
        await eventually(lambda: residence(core).used == sum(residence(core).sizes.values()))
        here = set(resident(core))
        index = await core.repository_index(ready=True)
        assert {entry.name for entry in index} == here
        assert residence(core).waiting == 0
    assert not any(each.is_loaded for each in backend.made)


async def test_changes_of_models_that_are_not_there_now(three: Path) -> None:
    """Polling loads what has changed, resident or not, and forgets what was removed."""
    settings = CoreSettings((three,), control_mode=ControlMode.POLL, poll_seconds=0.1, model_memory_budget=BUDGET)
    core = ServerCore(settings, BackendRegistry({"fake": fake_backend()}))
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        for name in "abc":
            await ask(core, name)
        assert await settled(core) == ["b", "c"]
        add_model(three, "a", versions=(2,), config=sized())
        await eventually(lambda: core.model_metadata("a").versions == ("2",))
        await eventually(lambda: "a" in resident(core))
        assert await settled(core) == ["a", "c"]
        shutil.rmtree(three / "b")
        await eventually(lambda: not core._manager or not core._manager.table.entry("b").can_serve)
        with pytest.raises(NotFound, match="'b' has no available versions"):
            await ask(core, "b")
        core.stop()


async def test_all_versions_of_a_model_come_and_go_together(three: Path) -> None:
    """Each counts; while the model is away, all of them are told of, and one that is not there is not."""
    config = sized(20) + "version_policy { all { } }\n"
    add_model(three, "many", versions=(1, 2), config=config)
    async with running(three) as core:
        for version in (1, 2):
            response = await core.infer(request("many", model_version=version))
            assert response.outputs[0].as_numpy()[0, 0] == 1
        assert residence(core).sizes["many"] == 40
        for name in "abc":
            await ask(core, name)
        assert "many" not in await settled(core)
        assert core.model_metadata("many").versions == ("1", "2")
        assert [each.memory_usage for each in core.model_statistics("many")] == [(), ()]
        assert core.is_model_ready("many", 1)
        assert core.is_model_ready("many", 2)
        with pytest.raises(NotFound, match="'many' version 3 is not found"):
            await core.infer(request("many", model_version=3))
        await core.infer(request("many", model_version=1))
        assert "many" in resident(core)
        index = [entry for entry in await core.repository_index() if entry.name == "many"]
        assert [(entry.version, entry.state) for entry in index] == [("1", "READY"), ("2", "READY")]
