"""The response cache: hits, misses, what invalidates, and caches that fail; under virtual time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio
from trio.testing import MockClock

from actors.cache import response_cache
from actors.cache.interface import Cache, CacheError
from actors.cache.local import LocalCache
from actors.cache.registry import UnusableCache
from actors.cache.response_cache import CALL_TIMEOUT_SECONDS, LOG_INTERVAL_SECONDS, ResponseCache, VersionCache
from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from actors.model.model import Model
from backends.registry import BackendRegistry
from protocol.errors import InvalidArgument
from protocol.messages import Buffer, InferenceRequest, Tensor
from repository.layout import ModelDirectory
from repository.model_config import ModelResponseCache
from repository.pbtxt import format_pbtxt
from tests.actors.fakes import CONFIG, FakeBackend, fake_backend, request, spec

CACHED = msgspec.structs.replace(CONFIG, response_cache=ModelResponseCache(enable=True))


class Shared(LocalCache):
    is_shared = True


class Trouble(Cache):
    """Fails, hangs or lies as it is told."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.mode = settings["mode"]
        self.calls = 0
        self.is_closed = False

    async def look_up(self, key: bytes) -> Buffer | None:
        self.calls += 1
        match self.mode:
            case "error":
                raise CacheError("no connection")
            case "crash":
                raise ZeroDivisionError("oh")
            case "hang":
                await trio.sleep_forever()
            case "garbage":
                return b"no response"
        return None

    async def insert(self, key: bytes, value: bytes) -> bool:
        self.calls += 1
        return True

    async def close(self) -> None:
        raise OSError("not now")


@asynccontextmanager
async def opened(
    name: str = "local", settings: Mapping[str, str] | None = None, extra: Mapping[str, type[Cache]] | None = None
) -> AsyncIterator[ResponseCache]:
    cache = ResponseCache(name, {"size": "100000"} if settings is None else settings, extra)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        yield cache
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(cache: ResponseCache, backend: type[FakeBackend]) -> AsyncIterator[Model]:
    served = Model(CACHED, 1, backend, [spec(CACHED)], cache=VersionCache(cache, b"key", 1))
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        yield served
        served.drain()


async def test_the_second_of_two_equal_requests_runs_nothing() -> None:
    """It has its own id; what counts are hits, misses, and success."""
    backend = fake_backend()
    async with opened() as cache, serving(cache, backend) as model:
        first = await model.infer(request(value=3, id="a"))
        again = await model.infer(request(value=3, id="b"))
        other = await model.infer(request(value=4, id="c"))
        assert backend.batches == [["a"], ["c"]]
        assert [answer.id for answer in (first, again, other)] == ["a", "b", "c"]
        assert again.outputs[0].as_numpy().tolist() == first.outputs[0].as_numpy().tolist() == [[3, 3]]
        assert (again.model_name, again.model_version) == ("m", 1)
        statistics = model.statistics.frozen("m", 1)
        counted = statistics.inference_stats
        assert (counted.cache_hit.count, counted.cache_miss.count) == (1, 2)
        assert (counted.success.count, counted.queue.count, counted.compute_infer.count) == (3, 3, 2)
        assert (statistics.inference_count, statistics.execution_count) == (2, 2)
        assert model.statistics.has_cache


async def test_times_are_those_of_look_up_and_insertion(autojump_clock: MockClock) -> None:
    class Slow(LocalCache):
        async def look_up(self, key: bytes) -> bytes | None:
            await trio.sleep(0.25)
            return await super().look_up(key)

        async def insert(self, key: bytes, value: bytes) -> bool:
            await trio.sleep(0.5)
            return await super().insert(key, value)

    backend = fake_backend(seconds=8)
    async with serving(cache := ResponseCache("local", {"size": "9999"}, {"local": Slow}), backend) as model:
        cache._cache = Slow({"size": "9999"})  # virtual time and the thread that finds a cache do not go together
        await model.infer(request())
        counted = model.statistics.frozen("m", 1).inference_stats
        assert (counted.cache_miss.ns, counted.success.ns) == (0.75e9, 8.75e9)
        await model.infer(request())
        counted = model.statistics.frozen("m", 1).inference_stats
        assert (counted.cache_hit.ns, counted.success.ns) == (0.25e9, 9e9)


async def test_an_error_is_not_kept() -> None:
    def fail_first(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        if len(type(backend).batches) == 1:
            raise ValueError("once")

    backend = fake_backend(on_execute=fail_first)
    async with opened() as cache, serving(cache, backend) as model:
        with pytest.raises(Exception, match="once"):
            await model.infer(request())
        await model.infer(request())
        await model.infer(request())
        assert len(backend.batches) == 2
        counted = model.statistics.frozen("m", 1).inference_stats
        assert (counted.cache_hit.count, counted.cache_miss.count) == (1, 1)


async def test_a_request_that_the_model_refuses_is_refused_each_time() -> None:
    wrong = InferenceRequest("m", [Tensor.from_numpy("IN", np.zeros((1, 3), np.float32))])
    async with opened() as cache, serving(cache, fake_backend()) as model:
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="unexpected shape"):
                await model.infer(wrong)


async def test_a_large_request_is_digested_without_holding_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_cache, "DIGEST_IN_THREAD_ABOVE", 0)
    backend = fake_backend()
    async with opened() as cache, serving(cache, backend) as model:
        await model.infer(request())
        await model.infer(request())
        assert len(backend.batches) == 1


def add_model(repository: Path, *, config: str | None = None) -> Path:
    (repository / "m" / "1").mkdir(parents=True, exist_ok=True)
    (repository / "m" / "config.pbtxt").write_text(config or format_pbtxt(CACHED))
    return repository / "m"


@asynccontextmanager
async def running(repository: Path, backend: type[FakeBackend], cache: ResponseCache) -> AsyncIterator[ServerCore]:
    settings = CoreSettings((repository,), control_mode=ControlMode.EXPLICIT, load_models=("*",))
    core = ServerCore(settings, BackendRegistry({"fake": backend}), cache)
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        yield core
        core.stop()


async def executions(core: ServerCore, backend: type[FakeBackend]) -> int:
    """How many batches one and the same request adds."""
    before = len(backend.batches)
    await core.infer(request())
    return len(backend.batches) - before


async def test_a_load_invalidates_what_a_local_cache_has(tmp_path: Path) -> None:
    directory = add_model(tmp_path)
    backend = fake_backend()
    async with opened() as cache, running(tmp_path, backend, cache) as core:
        assert [await executions(core, backend) for _ in range(2)] == [1, 0]
        await core.load_model("m")
        assert await executions(core, backend) == 0, "nothing has changed, so nothing was loaded"
        (directory / "1" / "weights").write_text("new")
        await core.load_model("m")
        assert [await executions(core, backend) for _ in range(2)] == [1, 0]
        await core.unload_model("m")
        await core.load_model("m")
        assert await executions(core, backend) == 1
        (snapshot,) = core.snapshots()
        assert snapshot.has_cache


async def test_a_shared_cache_serves_two_servers_as_long_as_files_and_configuration_agree(tmp_path: Path) -> None:
    directory = add_model(tmp_path)
    backend = fake_backend()
    async with opened("shared", extra={"shared": Shared}) as cache:
        async with running(tmp_path, backend, cache) as one, running(tmp_path, backend, cache) as other:
            assert await executions(one, backend) == 1
            assert await executions(other, backend) == 0
        async with running(tmp_path, backend, cache) as later:
            assert await executions(later, backend) == 0
        (directory / "1" / "weights").write_text("new")
        async with running(tmp_path, backend, cache) as changed:
            assert await executions(changed, backend) == 1


async def test_only_models_that_ask_for_it_are_cached(tmp_path: Path) -> None:
    add_model(tmp_path, config=format_pbtxt(CONFIG))
    backend = fake_backend()
    async with opened() as cache, running(tmp_path, backend, cache) as core:
        assert [await executions(core, backend) for _ in range(2)] == [1, 1]
        (snapshot,) = core.snapshots()
        assert not snapshot.has_cache


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("error", "no connection"),
        ("crash", "ZeroDivisionError: oh"),
        ("hang", f"no answer within {CALL_TIMEOUT_SECONDS:g} s"),
        ("garbage", "an entry is broken"),
    ],
)
async def test_a_cache_in_trouble_fails_no_request(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, mode: str, text: str
) -> None:
    """It is asked again only after a while, and logged ever so often."""
    trouble = Trouble({"mode": mode})
    cache = ResponseCache("trouble", {})
    cache._cache = trouble
    async with serving(cache, fake_backend()) as model:
        with caplog.at_level(logging.ERROR, logger="trioton.response_cache"):
            for _ in range(20):
                assert (await model.infer(request(id="r"))).id == "r"
            assert text in caplog.text
            assert len(caplog.records) == 1
            if mode != "garbage":
                assert trouble.calls == 1
            await trio.sleep(LOG_INTERVAL_SECONDS)
            calls = trouble.calls
            await model.infer(request())
            assert trouble.calls > calls
            assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("nope", {}, "unknown cache 'nope'"),
        ("local", {"size": "1"}, "cache 'local': setting 'size' expects"),
        ("local", {}, "cache 'local': setting 'size' is required"),
    ],
)
async def test_a_cache_that_cannot_be_made_says_why(name: str, settings: dict[str, str], text: str) -> None:
    with pytest.raises(UnusableCache, match=text):
        await ResponseCache(name, settings).run()


async def test_a_cache_that_cannot_be_closed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with opened("trouble", {"mode": ""}, {"trouble": Trouble}):
        pass
    assert "cache 'trouble' failed to close" in caplog.text


async def test_before_and_after_it_runs_it_keeps_nothing() -> None:
    cache = ResponseCache("local", {"size": "2000"})
    backend = fake_backend()
    async with serving(cache, backend) as model:
        await model.infer(request())
        async with trio.open_nursery() as nursery:
            await nursery.start(cache.run)
            assert not cache.is_shared
            await model.infer(request())
            await model.infer(request())
            nursery.cancel_scope.cancel()
        await model.infer(request())
    assert len(backend.batches) == 3


def test_generations(tmp_path: Path) -> None:
    add_model(tmp_path)
    directory = ModelDirectory("m", tmp_path / "m", tmp_path)
    cache = ResponseCache("local", {})
    assert cache.generation(directory, CACHED) != cache.generation(directory, CACHED)
    cache._cache = Shared({"size": "2000"})
    assert cache.generation(directory, CACHED) == cache.generation(directory, CACHED)
