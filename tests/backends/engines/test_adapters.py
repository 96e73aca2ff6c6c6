"""Adapters that are added and removed while their model is loaded, with the scripted engine in its own processes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.model import adapters as model_adapters
from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable, Unsupported
from tests.backends.engines.models import tiny_tokenizer, write_model, write_scripted_adapter
from tests.backends.engines.serving import Served, gather, kill_workers, serve
from tests.backends.python.processes import children, until

pytestmark = pytest.mark.slow

TEXT = "one two three four"
TOKENIZER = tiny_tokenizer()
ENDLESS: dict[str, Any] = {"max_tokens": 450, "ignore_eos": True, "stream": True}
TWO_INSTANCES = "instance_group { count: 2 }"


def rotated(places: int) -> str:
    """What the scripted engine answers with an adapter that begins so many tokens later."""
    tokens = TOKENIZER.encode(TEXT)
    return TOKENIZER.decode([*tokens[places:], *tokens[:places]])


@asynccontextmanager
async def served_with(
    folder: Path, *, files: dict[str, str] | None = None, instances: str = "", **parameters: object
) -> AsyncIterator[Served]:
    """The model `m` with the adapters `a`, `b`, … in the folder `adapters` beside it, which is allowed."""
    model = write_model(folder / "m", "scripted", files, **{"adapters": "true", **parameters})
    with (model / "config.pbtxt").open("a") as config:
        config.write(instances)
    for places, name in enumerate("abc", start=1):
        write_scripted_adapter(folder / "adapters" / name, rotate=places)
    async with serve(model, adapter_folders=(folder / "adapters",)) as served:
        yield served


def known(served: Served) -> Sequence[str]:
    text = served.core.table.find("m").text
    assert text is not None
    return sorted(text.adapters)


async def answers(served: Served, name: str, count: int = 4) -> set[str]:
    """What several requests with an adapter give, by whatever instances."""
    return set(await gather(*(served.text(TEXT, lora_name=name) for _ in range(count))))


async def test_an_adapter_comes_and_goes(tmp_path: Path) -> None:
    async with served_with(tmp_path, instances=TWO_INSTANCES) as served:
        core, path = served.core, str(tmp_path / "adapters" / "a")
        text = await core.text_model("m")
        assert (text.adapters, text.takes_adapters) == ({}, True)
        await core.load_adapter("m", "org/a", path)
        assert (await core.text_model("m")).adapters == {"org/a": path}
        assert await answers(served, "org/a") == {rotated(1)}
        assert await served.text(TEXT) == TEXT, "others are as they were"
        await core.load_adapter("m", "b", str(tmp_path / "adapters" / "b"))
        assert (
            await gather(*(served.text(TEXT, lora_name=each) for each in ("org/a", "b") * 4))
            == [
                rotated(1),
                rotated(2),
            ]
            * 4
        )
        await core.unload_adapter("m", "org/a")
        assert known(served) == ["b"]
        with pytest.raises(InvalidArgument, match=r"LoRA org/a is not supported, we currently support \['b'\]"):
            await served.text(TEXT, lora_name="org/a")
        with pytest.raises(NotFound, match="The lora adapter 'org/a' cannot be found"):
            await core.unload_adapter("m", "org/a")
        await core.load_adapter("m", "org/a", path)
        assert await answers(served, "org/a") == {rotated(1)}


async def test_engines_that_are_started_again_have_what_was_changed(tmp_path: Path) -> None:
    files = {"multi_lora.json": json.dumps({"own": "../../adapters/c", "other": "../../adapters/c"})}
    async with served_with(tmp_path, files=files, instances=TWO_INSTANCES) as served:
        core = served.core
        await core.load_adapter("m", "a", str(tmp_path / "adapters" / "a"))
        await core.load_adapter("m", "gone", str(tmp_path / "adapters" / "b"))
        await core.unload_adapter("m", "gone")
        await core.unload_adapter("m", "own")
        await core.load_adapter("m", "other", str(tmp_path / "adapters" / "b"), replace=True)
        for _ in range(2):
            assert known(served) == ["a", "other"]
            assert await answers(served, "a") == {rotated(1)}
            assert await answers(served, "other") == {rotated(2)}
            for name in ("gone", "own"):
                with pytest.raises(InvalidArgument, match=f"LoRA {name} is not supported"):
                    await served.text(TEXT, lora_name=name)
            kill_workers(children())
            await until(lambda: not core.is_model_ready("m"))
            await served.wait_ready()
        await core.load_adapter("m", "own", str(tmp_path / "adapters" / "a"))
        assert await answers(served, "own") == {rotated(1)}


async def test_an_adapter_that_is_lost_fails_alone_after_a_restart(tmp_path: Path) -> None:
    async with served_with(tmp_path) as served:
        await served.core.load_adapter("m", "a", str(tmp_path / "adapters" / "a"))
        write_scripted_adapter(tmp_path / "adapters" / "a", error="it is broken now")
        kill_workers(children())
        await until(lambda: not served.core.is_model_ready("m"))
        await served.wait_ready()
        assert await served.text(TEXT) == TEXT
        with pytest.raises(InvalidArgument, match="LoRA a is not supported"):
            await served.text(TEXT, lora_name="a")


async def test_all_instances_get_it_or_none(tmp_path: Path) -> None:
    async with served_with(tmp_path, instances=TWO_INSTANCES) as served:
        core = served.core
        once = write_scripted_adapter(tmp_path / "adapters" / "once", once=True)
        with pytest.raises(InvalidArgument, match=r"model instance 'm_0_.': LoRA adapter 'x': .*File exists"):
            await core.load_adapter("m", "x", str(once))
        assert known(served) == []
        for _ in range(4):
            with pytest.raises(InvalidArgument, match="LoRA x is not supported"):
                await served.text(TEXT, lora_name="x")
        await core.load_adapter("m", "x", str(tmp_path / "adapters" / "a"))
        (once / "loaded").unlink()
        with pytest.raises(InvalidArgument, match="File exists"):
            await core.load_adapter("m", "x", str(once), replace=True)
        assert (await core.text_model("m")).adapters == {"x": str(tmp_path / "adapters" / "a")}
        assert await answers(served, "x") == {rotated(1)}, "the former one is back everywhere"


async def test_in_place(tmp_path: Path) -> None:
    async with served_with(tmp_path) as served:
        core, path = served.core, tmp_path / "adapters" / "a"
        await core.load_adapter("m", "a", str(path), replace=True)
        with pytest.raises(InvalidArgument, match="'a' has already been loaded"):
            await core.load_adapter("m", "a", str(path))
        write_scripted_adapter(path, rotate=3)
        await core.load_adapter("m", "a", str(path), replace=True)
        assert await served.text(TEXT, lora_name="a") == rotated(3), "the same path is read again"


async def test_what_uses_it_ends_first(tmp_path: Path) -> None:
    async with served_with(tmp_path, step_seconds=0.01, max_inflight_requests=1) as served:
        core = served.core
        await core.load_adapter("m", "a", str(tmp_path / "adapters" / "a"))
        found: dict[str, Any] = {}

        async def ask(place: str) -> None:
            found[place] = await served.text(TEXT, lora_name="a", **{**ENDLESS, "max_tokens": 40})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "running")
            nursery.start_soon(ask, "waiting")
            await served.wait_waiting(1)
            nursery.start_soon(core.unload_adapter, "m", "a")
            await until(lambda: _is_refused(served))
            with pytest.raises(InvalidArgument, match="LoRA a is not supported"):
                await served.text(TEXT, lora_name="a")
            assert not found
        assert len(set(found.values())) == 1
        assert found["running"].startswith(rotated(1))
        assert known(served) == []
        await served.wait_free()


def _is_refused(served: Served) -> bool:
    """Whether the unload has begun."""
    model = served.core._running().find("m")
    return not model._adapters.added["a"].folder  # type: ignore[attr-defined]


async def test_a_client_that_leaves_frees_what_is_to_go(tmp_path: Path) -> None:
    async with served_with(tmp_path, step_seconds=0.01) as served:
        core = served.core
        await core.load_adapter("m", "a", str(tmp_path / "adapters" / "a"))
        async with trio.open_nursery() as nursery:
            client = trio.CancelScope()

            async def ask() -> None:
                with client:
                    await served.text(TEXT, lora_name="a", **ENDLESS)

            nursery.start_soon(ask)
            await served.wait_running()
            nursery.start_soon(core.unload_adapter, "m", "a")
            await until(lambda: _is_refused(served))
            client.cancel()
        assert known(served) == []


async def test_the_same_name_twice_at_once(tmp_path: Path) -> None:
    async with served_with(tmp_path) as served:
        slow = str(write_scripted_adapter(tmp_path / "adapters" / "slow", rotate=1, load_seconds=0.2))
        results = await gather(*(served.core.load_adapter("m", "x", slow) for _ in range(3)))
        assert sorted(type(each).__name__ for each in results) == ["InvalidArgument", "InvalidArgument", "NoneType"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.core.load_adapter, "m", "y", slow)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await served.core.unload_adapter("m", "y")  # waits for the load
        assert known(served) == ["x"]


async def test_a_caller_that_leaves_does_not_end_it(tmp_path: Path) -> None:
    async with served_with(tmp_path) as served:
        slow = str(write_scripted_adapter(tmp_path / "adapters" / "slow", rotate=1, load_seconds=0.3))
        with trio.move_on_after(0.1) as waiting:
            await served.core.load_adapter("m", "x", slow)
        assert waiting.cancelled_caught
        await until(lambda: known(served) == ["x"])
        assert await served.text(TEXT, lora_name="x") == rotated(1)


async def test_a_worker_that_ends_while_it_loads_one(tmp_path: Path) -> None:
    async with served_with(tmp_path, instances=TWO_INSTANCES) as served:
        crash = str(write_scripted_adapter(tmp_path / "adapters" / "crash", crash=True))
        with pytest.raises(Unavailable, match=r"model instance 'm_0_.': its engine has ended"):
            await served.core.load_adapter("m", "x", crash)
        await until(lambda: not served.core.is_model_ready("m"))
        await served.wait_ready()
        assert known(served) == []
        assert await answers(served, "") == {TEXT}
        await served.core.load_adapter("m", "x", str(tmp_path / "adapters" / "a"))
        assert await answers(served, "x") == {rotated(1)}


async def test_an_engine_that_does_not_come_back_from_it_is_started_anew(tmp_path: Path) -> None:
    async with served_with(tmp_path, step_timeout_seconds=0.5) as served:
        endless = str(write_scripted_adapter(tmp_path / "adapters" / "endless", load_seconds=600))
        with pytest.raises(Unavailable, match="its engine has ended"):
            await served.core.load_adapter("m", "x", endless)
        await until(lambda: not served.core.is_model_ready("m"))
        await served.wait_ready()
        assert await answers(served, "") == {TEXT}


async def test_its_model_is_unloaded_meanwhile(tmp_path: Path) -> None:
    async with served_with(tmp_path) as served:
        core = served.core
        slow = str(write_scripted_adapter(tmp_path / "adapters" / "slow", load_seconds=0.5))
        results: list[Any] = []

        async def load() -> None:
            results.extend(await gather(core.load_adapter("m", "x", slow)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await trio.testing.wait_all_tasks_blocked(0.1)
            await core.unload_model("m")
        assert results[0] is None or isinstance(results[0], Unavailable)
        with pytest.raises(ServerError):
            await core.load_adapter("m", "x", slow)
        await until(lambda: not children())
        await core.load_model("m")
        assert known(served) == []


async def test_the_server_stops_meanwhile(tmp_path: Path) -> None:
    """`serve` looks whether processes are left."""
    async with trio.open_nursery() as nursery, served_with(tmp_path) as served:
        slow = str(write_scripted_adapter(tmp_path / "adapters" / "slow", load_seconds=0.5))
        nursery.start_soon(gather, served.core.load_adapter("m", "x", slow))
        await trio.testing.wait_all_tasks_blocked(0.1)


async def test_no_more_than_there_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_adapters, "MOST_ADAPTERS", 3)
    async with served_with(tmp_path) as served:
        core, path = served.core, str(tmp_path / "adapters" / "a")
        results = await gather(*(core.load_adapter("m", f"n{place}", path) for place in range(8)))
        assert len(known(served)) == 3
        assert sum("which is the maximum" in str(each) for each in results) == 5
        await core.load_adapter("m", known(served)[0], path, replace=True)
        await core.unload_adapter("m", known(served)[0])
        await core.load_adapter("m", "more", path)


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", "\x00"])
async def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    async with served_with(tmp_path) as served:
        with pytest.raises(InvalidArgument, match="1 to 256 printable characters"):
            await served.core.load_adapter("m", name, str(tmp_path / "adapters" / "a"))


async def test_paths_of_the_models_own_and_others(tmp_path: Path) -> None:
    async with served_with(tmp_path) as served:
        core = served.core
        write_scripted_adapter(tmp_path / "m" / "1" / "mine", rotate=2)
        await core.load_adapter("m", "mine", "mine")
        assert (await core.text_model("m")).adapters == {"mine": "mine"}
        assert await served.text(TEXT, lora_name="mine") == rotated(2)
        write_scripted_adapter(tmp_path / "elsewhere")
        with pytest.raises(InvalidArgument, match="must be inside a folder that --openai-lora-path allows"):
            await core.load_adapter("m", "x", str(tmp_path / "elsewhere"))
        with pytest.raises(NotFound, match="No adapter found for"):
            await core.load_adapter("m", "x", str(tmp_path / "adapters" / "nowhere"))
        with pytest.raises(NotFound, match="unknown model"):
            await core.load_adapter("none", "x", "mine")
        assert known(served) == ["mine"]


async def test_without_adapters_or_without_leave(tmp_path: Path) -> None:
    async with served_with(tmp_path, adapters="false") as served:
        with pytest.raises(Unsupported, match="model 'm': LoRA feature is not enabled"):
            await served.core.load_adapter("m", "a", str(tmp_path / "adapters" / "a"))
        assert not (await served.core.text_model("m")).takes_adapters
    async with serve(tmp_path / "m") as served:
        for call in (served.core.load_adapter("m", "a", "a"), served.core.unload_adapter("m", "a")):
            with pytest.raises(Unsupported, match="requires --openai-lora-path"):
                await call
