"""Models that are put to sleep and woken, with the scripted engine: one that ends its process for that, and one that
sleeps in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from backends.engines import backend
from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable
from tests.backends.engines.models import write_model, write_scripted_adapter
from tests.backends.engines.serving import Served, gather, kill_workers, serve
from tests.backends.python.processes import children, until

pytestmark = pytest.mark.slow

TEXT = "one two three four"
ENDLESS: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "stream": True}

both_kinds = pytest.mark.parametrize("in_process", [False, True])


@asynccontextmanager
async def served_with(folder: Path, *, in_process: bool, count: int = 1, **parameters: object) -> AsyncIterator[Served]:
    options = {"can_sleep": str(in_process).lower(), "adapters": "true", **parameters}
    model = write_model(folder / "m", "scripted", **options)
    with (model / "config.pbtxt").open("a") as config:
        config.write(f"instance_group {{ count: {count} }}")
    async with serve(model, adapter_folders=(folder,)) as served:
        yield served


def sleep_state(served: Served) -> int:
    """The level that the gauge of the first engine shows."""
    [family] = [each for each in served.core.custom_metrics.values() if each.name == "vllm:engine_sleep_state"]
    [state] = [each.labels for each in list(family.values)[:3] if each.value]
    return ("awake", "weights_offloaded", "discard_all").index(dict(state)["sleep_state"])


@both_kinds
async def test_memory_is_given_back_and_requests_are_refused(tmp_path: Path, in_process: bool) -> None:
    async with served_with(tmp_path, in_process=in_process, count=2) as served:
        core = served.core
        before = len(children())
        assert core.sleeping() == {"m": False}
        for level in (1, 2):
            await core.sleep("m", level)
            assert len(children()) == (before if in_process else before - 2)
            assert core.sleeping() == {"m": True}
            assert not core.is_model_ready("m")
            assert not await core.check_model_ready("m")
            assert core.is_ready(), "it sleeps on purpose"
            assert sleep_state(served) == level
            assert await core.check_ready()
            await core.sleep("m", 1)  # it does already
            for options in ({}, {"stream": True}):
                with pytest.raises(Unavailable, match="model 'm' is asleep; POST /wake_up wakes it"):
                    await served.text(TEXT, **options)
            await core.wake("m")
            await core.wake("m")
            assert core.is_model_ready("m")
            assert await core.check_model_ready("m")
            assert sleep_state(served) == 0
            assert set(await gather(*(served.text(TEXT) for _ in range(6)))) == {TEXT}
            await served.wait_free()


@both_kinds
async def test_what_has_begun_ends_first(tmp_path: Path, in_process: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "INLINE_CHARACTERS", 30)  # longer ones are tokenized in a thread
    async with served_with(tmp_path, in_process=in_process, step_seconds=0.01, max_inflight_requests=1) as served:
        found: list[str] = []

        async def ask(text: str) -> None:
            found.append(await served.text(text, **ENDLESS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, TEXT)
            nursery.start_soon(ask, TEXT)
            await served.wait_waiting(1)
            nursery.start_soon(ask, "word " * 8)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(served.core.sleep, "m")
            await until(lambda: served.core.sleeping()["m"])
            with pytest.raises(Unavailable, match="is asleep"):
                await served.text(TEXT)
            assert not found
        assert len(found) == 3
        assert sum(each.startswith(TEXT) for each in found) == 2
        await served.core.wake("m")
        assert await served.text(TEXT) == TEXT


async def test_adapters_are_there_again(tmp_path: Path) -> None:
    async with served_with(tmp_path, in_process=False) as served:
        core, path = served.core, write_scripted_adapter(tmp_path / "a")
        await core.load_adapter("m", "a", str(path))
        expected = await served.text(TEXT, lora_name="a")
        await core.sleep("m")
        for call in (core.load_adapter("m", "b", str(path)), core.unload_adapter("m", "a")):
            with pytest.raises(Unavailable, match="is asleep"):
                await call
        assert sorted((await core.text_model("m")).adapters) == ["a"]
        await core.wake("m")
        assert await served.text(TEXT, lora_name="a") == expected
        await core.load_adapter("m", "b", str(path))
        await core.unload_adapter("m", "a")


@both_kinds
async def test_a_worker_that_ends_meanwhile(tmp_path: Path, in_process: bool) -> None:
    """One that sleeps is started when it wakes up; one that falls asleep has died."""
    async with served_with(tmp_path, in_process=in_process, step_seconds=0.01) as served:
        core = served.core
        results: list[Any] = []

        async def fall_asleep() -> None:
            results.extend(await gather(core.sleep("m")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(gather, served.text(TEXT, **ENDLESS))
            await served.wait_running()
            nursery.start_soon(fall_asleep)
            await until(lambda: core.sleeping()["m"])
            kill_workers(children())
        assert isinstance(results[0], Unavailable)
        await served.wait_ready()
        assert await served.text(TEXT) == TEXT
        await core.sleep("m")
        kill_workers(children())
        await until(lambda: not children())
        assert core.sleeping() == {"m": True}
        await core.wake("m")
        assert await served.text(TEXT) == TEXT
        kill_workers(children())
        await until(lambda: not core.is_model_ready("m"))
        await served.wait_ready()
        assert await served.text(TEXT) == TEXT


@both_kinds
async def test_many_at_once(tmp_path: Path, in_process: bool) -> None:
    async with served_with(tmp_path, in_process=in_process) as served:
        core = served.core
        calls = [core.sleep("m"), core.wake("m"), core.sleep("m", 2), served.text(TEXT), core.wake("m")]
        results = await gather(*calls)
        assert all(each is None or each == TEXT or isinstance(each, Unavailable) for each in results)
        await core.wake("m")
        assert await served.text(TEXT) == TEXT
        assert len(children()) == 1


async def test_a_caller_that_leaves_does_not_end_it(tmp_path: Path) -> None:
    async with served_with(tmp_path, in_process=False, load_seconds=0.2) as served:
        core = served.core
        with trio.move_on_after(0):
            await core.sleep("m")
        await core.sleep("m")
        with trio.move_on_after(0.1) as waiting:
            await core.wake("m")
        assert waiting.cancelled_caught
        await until(lambda: not core.sleeping()["m"])
        assert await served.text(TEXT) == TEXT


@pytest.mark.parametrize("changing", ["asleep", "falling asleep", "waking"])
async def test_its_model_is_unloaded_meanwhile(tmp_path: Path, changing: str) -> None:
    async with served_with(tmp_path, in_process=False, load_seconds=0.3, step_seconds=0.01) as served:
        core = served.core
        async with trio.open_nursery() as nursery:
            if changing == "falling asleep":
                nursery.start_soon(gather, served.text(TEXT, **ENDLESS))
                await served.wait_running()
                nursery.start_soon(gather, core.sleep("m"))
                await until(lambda: core.sleeping()["m"])
            else:
                await core.sleep("m")
            if changing == "waking":
                nursery.start_soon(gather, core.wake("m"))
                await until(lambda: bool(children()))
            await core.unload_model("m")
        await until(lambda: not children())
        with pytest.raises(NotFound):
            await core.wake("m")
        await core.load_model("m")
        assert core.sleeping() == {"m": False}
        assert await served.text(TEXT) == TEXT


@pytest.mark.parametrize("changing", ["asleep", "waking"])
async def test_the_server_stops_meanwhile(tmp_path: Path, changing: str) -> None:
    """`serve` looks whether processes are left."""
    async with trio.open_nursery() as nursery, served_with(tmp_path, in_process=False, load_seconds=0.3) as served:
        await served.core.sleep("m")
        if changing == "waking":
            nursery.start_soon(gather, served.core.wake("m"))
            await until(lambda: bool(children()))


async def test_an_engine_that_cannot_be_woken_sleeps_on(tmp_path: Path) -> None:
    files = {"script.json": '[{"tokens": [5, 6, 7]}]'}
    script = tmp_path / "m" / "1" / "script.json"
    async with serve(write_model(tmp_path / "m", "scripted", files, rule="script")) as served:
        await served.core.sleep("m")
        script.rename(tmp_path / "kept")
        with pytest.raises(ServerError, match=r"script.json"):
            await served.core.wake("m")
        assert served.core.sleeping() == {"m": True}
        (tmp_path / "kept").rename(script)
        await served.core.wake("m")
        assert await served.text(TEXT)


async def test_prefixes_are_forgotten(tmp_path: Path) -> None:
    async with served_with(tmp_path, in_process=False) as served:
        text = "word " * 40
        for _ in range(2):
            await served.text(text)
        hits = served.load()["prefix_cache_hits_total"]
        assert hits > 0
        await served.core.reset_prefix_cache("m")
        await served.text(text)
        assert served.load()["prefix_cache_hits_total"] == hits
        with pytest.raises(NotFound):
            await served.core.reset_prefix_cache("none")
        await served.core.sleep("m")
        with pytest.raises(Unavailable, match="is asleep"):
            await served.core.reset_prefix_cache("m")


async def test_names_that_are_none(tmp_path: Path) -> None:
    async with served_with(tmp_path, in_process=False) as served:
        for call in (served.core.sleep("none"), served.core.wake("none")):
            with pytest.raises((NotFound, InvalidArgument)):
                await call
