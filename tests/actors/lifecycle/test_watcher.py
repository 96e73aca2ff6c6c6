"""Poll mode over real repositories on disk, with a fake backend and in virtual time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from actors.core.server_core import ServerCore
from protocol.core import ModelIndex
from protocol.errors import NotFound, Unavailable
from tests.actors.core.test_server_core import PBTXT
from tests.actors.fakes import fake_backend, request
from tests.actors.lifecycle.test_composing import add_ensemble
from tests.actors.polling import POLL_SECONDS, SETTLED, Weights, polling, write

ALL_VERSIONS = f"{PBTXT} version_policy {{ all {{ }} }}"


def add(repository: Path, name: str, weights: dict[int, str], *, config: str = ALL_VERSIONS) -> Path:
    for version, text in weights.items():
        write(repository / name / str(version) / "weights", text)
    write(repository / name / "config.pbtxt", config)
    return repository / name


async def index(core: ServerCore) -> dict[str, ModelIndex]:
    return {f"{entry.name}:{entry.version}": entry for entry in await core.repository_index()}


async def test_added_changed_and_removed_models_are_seen(tmp_path: Path, autojump_clock: MockClock) -> None:
    add(tmp_path, "m", {1: "old"})
    weights = Weights()
    async with polling(tmp_path, backend=weights.backend) as core:
        assert weights.loaded == {("m", 1): "old"}
        add(tmp_path, "n", {1: "new"})
        add(tmp_path, "m", {1: "changed"})
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "changed", ("n", 1): "new"}
        shutil.rmtree(tmp_path / "m")
        await trio.sleep(SETTLED)
        assert weights.loaded == {("n", 1): "new"}
        assert (await index(core))["m:1"] == ModelIndex("m", "1", "UNAVAILABLE", "unloaded")
        assert core.is_ready(), "what was taken away does not count"
        with pytest.raises(NotFound):
            await core.infer(request())
        add(tmp_path, "m", {1: "back"})
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "back", ("n", 1): "new"}


async def test_versions_come_and_go_while_the_others_serve_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    add(tmp_path, "m", {1: "one", 2: "two"})
    weights = Weights()
    async with polling(tmp_path, backend=weights.backend) as core:
        add(tmp_path, "m", {2: "changed", 3: "three"})
        await trio.sleep(SETTLED)
        shutil.rmtree(tmp_path / "m" / "2")
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "one", ("m", 3): "three"}
        write(tmp_path / "m" / "config.pbtxt", f"{PBTXT} version_policy {{ specific {{ versions: [ 1 ] }} }}")
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "one"}
        made = sorted(backend.spec.source.version for backend in weights.backend.made)
        assert made == [1, 2, 2, 3], "each change has loaded nothing but what has changed"
        assert core.model_metadata("m").versions == ("1",)
        write(tmp_path / "m" / "config.pbtxt", ALL_VERSIONS.replace("max_batch_size: 4", "max_batch_size: 2"))
        await trio.sleep(SETTLED)
        assert sorted(backend.spec.source.version for backend in weights.backend.made[4:]) == [1, 3]
        assert core.model_config("m")["max_batch_size"] == 2


async def test_the_statistics_of_a_version_that_serves_on_go_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    add(tmp_path, "m", {1: "one"})
    async with polling(tmp_path, backend=Weights().backend) as core:
        await core.infer(request())
        add(tmp_path, "m", {2: "two"})
        await trio.sleep(SETTLED)
        assert [(each.version, each.inference_count) for each in core.model_statistics("m")] == [("1", 1), ("2", 0)]


async def test_what_is_being_copied_waits_until_it_is_whole(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It is loaded once, when it is there, and holds up nothing meanwhile."""
    weights = Weights()
    async with polling(tmp_path, backend=weights.backend) as core:
        (tmp_path / "m" / "1").mkdir(parents=True)
        await trio.sleep(SETTLED)
        assert "m:" in await index(core)
        assert core.is_ready(), "folders without files are no model yet"
        await trio.sleep(POLL_SECONDS - trio.current_time() % POLL_SECONDS - 0.25)
        for part in range(20):
            write(tmp_path / "m" / "1" / "weights", "x" * part)
            if part == 5:
                add(tmp_path, "n", {1: "other"})
            await trio.sleep(0.5)
        assert weights.loaded == {("n", 1): "other"}
        write(tmp_path / "m" / "1" / "weights", "whole")
        write(tmp_path / "m" / "config.pbtxt", PBTXT)
        await trio.sleep(SETTLED)
        assert weights.loaded == {("n", 1): "other", ("m", 1): "whole"}
        assert len(weights.backend.made) == 2


async def test_a_model_that_is_replaced_with_a_gap_serves_without_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    model = add(tmp_path, "m", {1: "old"})
    weights = Weights()
    async with polling(tmp_path, backend=weights.backend) as core:
        await trio.sleep(POLL_SECONDS - 0.25)
        shutil.rmtree(model)
        await trio.sleep(0.5)  # the poll
        assert (await core.infer(request(id="in between"))).id == "in between"
        add(tmp_path, "m", {1: "new"})
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "new"}
        assert not weights.backend.made[0].is_loaded


async def test_a_failed_load_leaves_the_old_one_serving_and_says_so(tmp_path: Path, autojump_clock: MockClock) -> None:
    model = add(tmp_path, "m", {1: "old"})
    weights = Weights()
    async with polling(tmp_path, backend=weights.backend) as core:
        (model / "1" / "weights").unlink()
        write(model / "1" / "other", "")
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "old"}
        entry = (await index(core))["m:1"]
        assert entry.state == "READY"
        assert entry.reason == (
            "serves as it was before the last load, which failed: "
            "version 1 is at UNAVAILABLE state: Internal: no weights;"
        )
        write(model / "config.pbtxt", "max_batch_size: many")
        await trio.sleep(SETTLED)
        assert "Couldn't parse integer: many" in (await index(core))["m:1"].reason
        assert core.is_ready()
        add(tmp_path, "m", {1: "mended"})
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "mended"}
        assert (await index(core))["m:1"].reason == ""


async def test_the_old_files_back_are_no_change(tmp_path: Path, autojump_clock: MockClock) -> None:
    model = add(tmp_path, "m", {1: "old"})
    weights = Weights()
    async with polling(tmp_path, backend=weights.backend) as core:
        (model / "1" / "weights").rename(tmp_path / "aside")
        await trio.sleep(SETTLED)
        (tmp_path / "aside").rename(model / "1" / "weights")
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "old"}
        assert (await index(core))["m:1"] == ModelIndex("m", "1", "READY")


async def test_a_slow_load_holds_up_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Neither requests nor the index, nor what happens to other models; later changes of its own are taken after."""
    add(tmp_path, "m", {1: "one"})
    gates: dict[str, trio.Event] = {}

    class Slow(Weights().backend):  # type: ignore[misc]  # a class made for this test
        async def load(self) -> None:
            await super().load()
            if self.weights in gates:
                await gates[self.weights].wait()

    async with polling(tmp_path, backend=Slow) as core:
        gates["slow"] = trio.Event()
        add(tmp_path, "m", {1: "slow"})
        await trio.sleep(SETTLED)
        add(tmp_path, "n", {1: "quick"})
        add(tmp_path, "m", {1: "slower"})
        await trio.sleep(SETTLED)
        assert core.is_model_ready("n")
        assert (await core.infer(request(id="served"))).id == "served"
        assert (await index(core))["m:1"].state == "READY"
        assert [made.weights for made in Slow.made] == ["one", "slow", "quick"]
        gates["slow"].set()
        await trio.sleep(SETTLED)
        assert [made.weights for made in Slow.made if made.is_loaded] == ["quick", "slower"]


async def test_an_ensemble_is_loaded_when_what_it_needs_can_be_had(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An ensemble waits for the models of its steps, and is tried again when they can be had."""
    add_ensemble(tmp_path, "e", "a", "z")
    add(tmp_path, "z", {1: "z"})
    weights = Weights()
    async with polling(tmp_path, backend=weights.backend) as core:
        assert "contains models that are not available or ambiguous: a" in (await index(core))["e:"].reason
        assert not core.is_ready()
        write(tmp_path / "a" / "config.pbtxt", PBTXT)
        write(tmp_path / "a" / "1" / "other", "")
        await trio.sleep(SETTLED)
        assert "no weights" in (await index(core))["a:1"].reason
        assert (await index(core))["e:"].state == "UNAVAILABLE"
        write(tmp_path / "a" / "1" / "weights", "a")
        await trio.sleep(SETTLED)
        assert {entry.name: entry.state for entry in await core.repository_index()} == {
            "a": "READY",
            "e": "READY",
            "z": "READY",
        }
        assert core.is_ready()
        add_ensemble(tmp_path, "f", "b", "e")
        add(tmp_path, "b", {1: "b"})
        await trio.sleep(SETTLED)
        assert core.is_model_ready("f")
        assert [made.weights for made in weights.backend.made if made.is_loaded] == ["z", "a", "b"]  # type: ignore[attr-defined]


async def test_a_second_place_for_a_name_takes_nothing_down(tmp_path: Path, autojump_clock: MockClock) -> None:
    add(tmp_path / "one", "m", {1: "first"})
    (tmp_path / "two").mkdir()
    weights = Weights()
    async with polling(tmp_path / "one", tmp_path / "two", backend=weights.backend) as core:
        add(tmp_path / "two", "m", {1: "second"})
        add(tmp_path / "two", "n", {1: "n"})
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "first", ("n", 1): "n"}
        assert "model appears in two or more repositories" in (await index(core))["m:1"].reason
        shutil.rmtree(tmp_path / "one" / "m")
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "second", ("n", 1): "n"}


async def test_a_repository_that_cannot_be_listed_keeps_its_models(tmp_path: Path, autojump_clock: MockClock) -> None:
    add(tmp_path / "one", "m", {1: "m"})
    add(tmp_path / "two", "n", {1: "n"})
    weights = Weights()
    async with polling(tmp_path / "one", tmp_path / "two", backend=weights.backend):
        (tmp_path / "one").rename(tmp_path / "away")
        add(tmp_path / "two", "n", {1: "changed"})
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "m", ("n", 1): "changed"}
        (tmp_path / "away").rename(tmp_path / "one")
        add(tmp_path / "one", "m", {1: "m again"})
        await trio.sleep(SETTLED)
        assert weights.loaded == {("m", 1): "m again", ("n", 1): "changed"}


async def test_clients_may_not_load(tmp_path: Path, autojump_clock: MockClock) -> None:
    add(tmp_path, "m", {1: "m"})
    async with polling(tmp_path, backend=Weights().backend) as core:
        for call in (core.load_model, core.unload_model):
            with pytest.raises(
                Unavailable, match=r"^explicit model load / unload is not allowed if polling is enabled$"
            ):
                await call("m")


async def test_it_stops_in_the_middle_of_a_load(tmp_path: Path, autojump_clock: MockClock) -> None:
    add(tmp_path, "m", {1: "m"})

    class Endless(fake_backend()):  # type: ignore[misc]  # a class made for this test
        async def load(self) -> None:
            if len(type(self).made) > 1:
                await trio.sleep_forever()
            await super().load()

    async with polling(tmp_path, backend=Endless):
        add(tmp_path, "m", {1: "changed"})
        await trio.sleep(SETTLED)
        assert len(Endless.made) == 2
    assert [(made.is_loaded, made.unloads) for made in Endless.made] == [(False, 1), (False, 1)]
