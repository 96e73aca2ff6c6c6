"""Models of a store, brought to this machine: whole, or not at all."""

from __future__ import annotations

import http.server
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from actors.lifecycle.download import at_hand
from protocol.errors import InvalidArgument, ServerError, Unavailable
from repository.layout import ModelDirectory, find_model
from repository.stores import download
from repository.stores.cache import FileCache
from repository.stores.client import Patience, StoredObject
from repository.stores.errors import ObjectChanged
from repository.stores.snapshot import models_in
from repository.stores.store_repository import StoreRepository, Stores
from repository.stores.urls import parse_store_url
from tests.emulators import GoogleStore, Store
from tests.repository.stores.endpoint import answer, endpoint, forward

QUICK = Patience(connect_seconds=1, read_seconds=5, request_seconds=5, retries=0, retry_seconds=1)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[FileCache]:
    made = FileCache(tmp_path / "cache", 10**9)
    yield made
    made.close()


def repository(url: str, cache: FileCache) -> StoreRepository:
    return Stores(os.environ, cache, QUICK).repository(parse_store_url(url))


def model(store: Store, cache: FileCache) -> ModelDirectory:
    return find_model((repository(f"{store.url}/models", cache),), "m").models["m"]


def left(cache_root: Path) -> list[str]:
    """What is in the folder of the cache's process: partial files, and folders of models."""
    return [path.name for path in cache_root.glob("work/*/partial/*")] + [
        path.name for path in cache_root.glob("work/*/models/*")
    ]


@pytest.mark.slow
async def test_a_model_is_there_while_it_is_needed(store: Store, cache: FileCache, tmp_path: Path) -> None:
    """With all its files as they are in the store, also large and empty ones."""
    large = os.urandom(2 * download.PART_BYTES + 5)
    files = {"config.pbtxt": b"a", "1/model.onnx": large, "1/empty": b"", "1/a b/ü%20.txt": b"text"}
    for path, content in files.items():
        store.put(f"models/m/{path}", content)
    async with at_hand(model(store, cache)) as (here, files_held):
        assert (here.name, here.remote) == ("m", None)
        for path, content in files.items():
            assert (here.path / path).read_bytes() == content
        assert files_held is not None
        files_held.share()
    assert here.path.is_dir()
    files_held.release()
    assert not here.path.exists()
    assert left(tmp_path / "cache") == []


async def test_only_what_has_changed_is_downloaded(
    s3: Store, cache: FileCache, caplog: pytest.LogCaptureFixture
) -> None:
    """The log tells how much."""
    caplog.set_level(logging.DEBUG)
    for path in ("config.pbtxt", "1/a", "1/b"):
        s3.put(f"models/m/{path}", b"first")
    async with at_hand(model(s3, cache), only_configuration=True) as (here, _):
        assert [path.name for path in here.path.rglob("*")] == ["config.pbtxt"]
    for _ in range(2):
        async with at_hand(model(s3, cache)):
            pass
    s3.put("models/m/1/b", b"second")
    async with at_hand(model(s3, cache)) as (here, _):
        assert (here.path / "1" / "b").read_bytes() == b"second"
    counts = [record.getMessage() for record in caplog.records if "downloading 'm'" in record.getMessage()]
    assert [text.partition("/models/m: ")[2] for text in counts] == [f"{number} files, 0.0 MB" for number in (1, 2, 1)]


async def test_an_object_that_changes_meanwhile_fails_the_download(s3: Store, cache: FileCache, tmp_path: Path) -> None:
    """No folder is ever made of two states of a model."""
    s3.put("models/m/1/a", b"first")
    s3.put("models/m/1/b", b"first")
    listed = model(s3, cache)
    s3.put("models/m/1/b", b"other")
    with pytest.raises(ObjectChanged, match="cannot read 'models/m/1/b': the object has changed"):
        async with at_hand(listed):
            pass
    assert left(tmp_path / "cache") == []


async def test_a_connection_that_breaks_is_taken_up_where_it_was(
    s3: Store, cache: FileCache, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    content = os.urandom(3_000_000)
    starts: list[int] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        start, end = (int(word) for word in request.headers["Range"].removeprefix("bytes=").split("-"))
        starts.append(start)
        request.send_response(206)
        request.send_header("Content-Length", str(end + 1 - start))
        request.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
        request.send_header("Last-Modified", "Sun, 22 Nov 2026 10:00:00 GMT")
        request.send_header("ETag", '"x"')
        request.end_headers()
        request.wfile.write(content[start : end + 1 if len(starts) > 1 else 2_000_000])
        request.close_connection = True

    with endpoint(handle) as address:
        bucket = repository(f"s3://{address}/b", cache)._bucket
        remote = models_in("s3://b", bucket, cache, [StoredObject("m/1/a", len(content), '"x"', 10**18)])["m"]
        async with at_hand(ModelDirectory("m", Path("m"), Path(), remote=remote)) as (here, _):
            assert (here.path / "1" / "a").read_bytes() == content
    assert len(starts) > 1
    assert starts[-1] > 0


async def test_an_interrupted_download_from_google(
    google: GoogleStore, cache: FileCache, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole in the end, after a connection that breaks and a store that is busy."""
    content = os.urandom(3_000_000)
    google.put("models/m/1/a", content)
    ranges: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        if reads := request.path.endswith("a"):
            ranges.append(request.headers["Range"])
        if reads and len(ranges) == 2:
            answer(503)(request)
            return
        limit = 2_000_000 if reads and len(ranges) == 1 else None
        forward(request, google.environment["GOOGLE_BASE_URL"] + request.path, limit=limit)

    with endpoint(handle) as address:
        monkeypatch.setenv("GOOGLE_BASE_URL", address)
        async with at_hand(model(google, cache)) as (here, _):
            assert (here.path / "1" / "a").read_bytes() == content
    assert len(ranges) == 3
    assert ranges[1] == ranges[2] != ranges[0]


async def test_a_store_that_goes_away(
    s3: Store, cache: FileCache, autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Is asked again a few times, then the download has failed and nothing of it is left."""
    bucket = repository("s3://127.0.0.1:1/b", cache)._bucket
    remote = models_in("s3://b", bucket, cache, [StoredObject(f"m/1/{name}", 5, '"x"', 1) for name in "abc"])["m"]
    with pytest.raises(Unavailable, match=r"cannot read 'm/1/.': the store did not answer as it should"):
        async with at_hand(ModelDirectory("m", Path("m"), Path(), remote=remote)):
            pass
    assert left(tmp_path / "cache") == []


async def test_cancelled_it_leaves_nothing(s3: Store, cache: FileCache, tmp_path: Path) -> None:
    """Also while the store hangs."""
    asked, over = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def hang(request: http.server.BaseHTTPRequestHandler) -> None:
        token.run_sync_soon(asked.set)
        trio.from_thread.run(over.wait, trio_token=token)

    with endpoint(hang) as address:
        bucket = repository(f"s3://{address}/b", cache)._bucket
        remote = models_in("s3://b", bucket, cache, [StoredObject("m/1/a", 5, '"x"', 1)])["m"]
        async with trio.open_nursery() as nursery:

            async def load() -> None:
                async with at_hand(ModelDirectory("m", Path("m"), Path(), remote=remote)):
                    raise AssertionError("it cannot have been downloaded")

            nursery.start_soon(load)
            await asked.wait()
            nursery.cancel_scope.cancel()
        assert left(tmp_path / "cache") == []
        over.set()
        await trio.testing.wait_all_tasks_blocked()


async def test_what_no_directory_can_hold(s3: Store, cache: FileCache) -> None:
    s3.put("models/m/1/a", b"x")
    s3.put("models/m/1", b"x")
    with pytest.raises(InvalidArgument, match=r"s3://.*/models/m: '1': both an object and a directory of objects"):
        async with at_hand(model(s3, cache)):
            pass
    s3.delete("models/m/1")
    s3.put(f"models/m/1/{'x' * 300}", b"x")
    with pytest.raises(ServerError, match=r"cannot write the local copy .*File name too long"):
        async with at_hand(model(s3, cache)):
            pass


async def test_a_model_on_this_machine_is_taken_as_it_is(tmp_path: Path) -> None:
    directory = ModelDirectory("m", tmp_path / "m", tmp_path)
    async with at_hand(directory) as found:
        assert found == (directory, None)
