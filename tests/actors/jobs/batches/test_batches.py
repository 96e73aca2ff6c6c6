"""Batches of a server, on its store: their states, what ends them, and what a new start makes of each."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.jobs.batches import batches as module
from actors.jobs.batches.batches import BatchRules, ServerBatches
from actors.jobs.batches.input import read_input
from actors.jobs.batches.output import BatchOutput
from actors.jobs.jobs import ServerJobs
from actors.jobs.sqlite.store import SqliteStore
from protocol.errors import InvalidArgument, NotFound, Overloaded
from protocol.jobs.batches.batch import BATCH_KIND, Batch, BatchState
from protocol.jobs.batches.files import INPUT, StoredFile, new_file_id
from protocol.jobs.batches.lines import decode_line_request
from protocol.jobs.batches.results import answer_parts
from protocol.jobs.batches.service import NewBatch
from protocol.jobs.execution import FailedItem, ModelLoad, Partial
from protocol.jobs.store import JobFilter, Limits
from protocol.messages import Buffer

URL = "/v1/completions"


class Lines:
    """An executor that answers a line with its bytes. Those with `hold` wait for `released`; what runs is counted."""

    def __init__(self) -> None:
        self.store: SqliteStore
        self.released = trio.Event()
        self.holds = trio.Event()
        self.runs: list[str] = []

    async def run(self, owner: str, request: Buffer, partial: Partial) -> Sequence[Buffer]:
        line = decode_line_request(request)
        text = await self.store.read_file(line.payload, line.start, line.size)
        name = json.loads(text)["custom_id"]
        if "hold" in name:
            self.holds.set()
            await self.released.wait()
        self.runs.append(name)
        if "fail" in name:
            raise FailedItem(InvalidArgument("no"), answer_parts(400, b"r", [b'{"error":{}}']))
        return answer_parts(200, b"r", [text.rstrip()])

    def load_of(self, model: str) -> ModelLoad:
        return ModelLoad(0, 0)


@dataclass
class Server:
    batches: ServerBatches
    store: SqliteStore
    lines: Lines
    charged: list[tuple[str, str, int]] = field(default_factory=list)

    async def upload(self, *names: str, text: bytes = b"") -> StoredFile:
        content = text or b"".join(map(line, names))
        writer = await self.batches.file_writer()
        await writer.write(content)
        await writer.finish()
        now = self.batches.now()
        file = StoredFile(new_file_id(now), "ann", INPUT, "in", writer.payload, writer.size, now, now + 1000)
        await self.batches.keep_file(file, writer)
        await writer.close()
        return file

    async def begin(self, *names: str, text: bytes = b"") -> Batch:
        return await self.batches.create(NewBatch("ann", URL, await self.upload(*names, text=text)))

    async def until(self, batch_id: str, wanted: Callable[[Batch], Any]) -> Batch:
        while True:
            batch = await self.batches.find("ann", batch_id)
            if wanted(batch):
                return batch
            await trio.sleep(0.005)

    async def ended(self, batch_id: str) -> Batch:
        return await self.until(batch_id, lambda batch: batch.ended)

    async def custom_ids(self, file_id: str) -> list[str]:
        if not file_id:
            return []
        file = await self.batches.find_file("ann", file_id)
        text = await self.batches.read_file(file.payload, 0, 1 << 20)
        return [json.loads(each)["custom_id"] for each in text.splitlines()]


def line(name: str) -> bytes:
    members = {"custom_id": name, "method": "POST", "url": URL, "body": {"model": "m"}}
    return json.dumps(members).encode() + b"\n"


async def _model_of(name: str | None) -> str:
    if name != "m":
        raise NotFound(f"Unknown model: {name}")
    return "core-m"


@asynccontextmanager
async def serving(folder: Path, *, max_seconds: float = 86_400.0) -> AsyncIterator[Server]:
    store, lines = SqliteStore(folder, Limits(reserve=0)), Lines()
    lines.store = store
    charged: list[tuple[str, str, int]] = []
    jobs = ServerJobs(store, lines, max_seconds=max_seconds, executors={BATCH_KIND: lines})
    rules = BatchRules(_model_of, lambda owner, model, count: charged.append((owner, model, count)))
    batches = ServerBatches(store, jobs, rules)
    async with trio.open_nursery() as nursery:
        await nursery.start(jobs.run)
        await nursery.start(batches.run)
        yield Server(batches, store, lines, charged)
        nursery.cancel_scope.cancel()


async def test_a_batch_that_completes(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            batch = await server.begin("a", "fail b", "c")
            assert batch.state is BatchState.VALIDATING
            done = await server.ended(batch.id)
            assert (done.state, done.model) == (BatchState.COMPLETED, "m")
            assert (done.counts.total, done.counts.completed, done.counts.failed) == (3, 2, 1)
            assert await server.custom_ids(done.output_file) == ["a", "c"]
            assert await server.custom_ids(done.error_file) == ["fail b"]
            assert server.charged == [("ann", "core-m", 3)]
            assert await server.store.jobs("ann", JobFilter(kind=BATCH_KIND), "", 10) == []
            assert not server.batches._running


async def test_its_counts_are_seen_while_it_runs(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            batch = await server.begin("a", "b", "hold")
            running = await server.until(batch.id, lambda found: found.counts.completed == 2)
            assert (running.state, running.counts.total) == (BatchState.IN_PROGRESS, 3)
            assert [each.counts.completed for each in await server.batches.batches("ann", "", 9)] == [2]
            server.lines.released.set()
            assert (await server.ended(batch.id)).counts.completed == 3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"{\n", "invalid_json_line"),
        (b"\n", "empty_file"),
        (line("a").replace(b'"m"', b'"other"'), "model_not_found"),
    ],
)
async def test_a_batch_that_fails(tmp_path: Path, text: bytes, code: str) -> None:
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            done = await server.ended((await server.begin(text=text)).id)
            assert (done.state, [error.code for error in done.errors]) == (BatchState.FAILED, [code])
            assert server.charged == []
            await server.until(done.id, lambda _: not server.batches._running)
            await server.store.expire(server.batches.now() + 900)
            assert await server.batches.find("ann", done.id) == done


async def test_cancelled_in_the_middle_it_keeps_what_was_done(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            batch = await server.begin("a", "b", "hold 1", "hold 2")
            await server.until(batch.id, lambda found: found.counts.completed == 2)
            assert (await server.batches.cancel("ann", batch.id)).state is BatchState.CANCELLING
            done = await server.ended(batch.id)
            assert done.state is BatchState.CANCELLED
            assert (done.counts.total, done.counts.completed, done.counts.failed) == (4, 2, 0)
            assert set(done.times) == {"in_progress", "cancelling", "cancelled"}
            assert await server.custom_ids(done.output_file) == ["a", "b"]
            assert await server.custom_ids(done.error_file) == ["hold 1", "hold 2"]
            assert await server.batches.cancel("ann", batch.id) == done


async def test_cancelled_while_its_input_is_read_it_never_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = trio.Event(), trio.Event()

    async def held(*arguments: Any) -> None:
        begun.set()
        await go_on.wait()
        await read_input(*arguments)

    monkeypatch.setattr(module, "read_input", held)
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            batch = await server.begin("a")
            await begun.wait()
            await server.batches.cancel("ann", batch.id)
            go_on.set()
            done = await server.ended(batch.id)
            assert (done.state, done.output_file, done.counts.total) == (BatchState.CANCELLED, "", 0)
            assert server.lines.runs == []


async def test_one_that_expires_keeps_what_was_done(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with serving(tmp_path, max_seconds=1.0) as server:
            batch = await server.begin("a", "hold")
            done = await server.ended(batch.id)
            assert (done.state, done.counts.completed) == (BatchState.EXPIRED, 1)
            assert await server.custom_ids(done.output_file) == ["a"]
            assert await server.custom_ids(done.error_file) == ["hold"]


async def test_a_new_start_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            batch = await server.begin("a", "b", "hold")
            await server.until(batch.id, lambda found: found.counts.completed == 2)
        async with serving(tmp_path) as server:
            server.lines.released.set()
            done = await server.ended(batch.id)
            assert done.state is BatchState.COMPLETED
            assert server.lines.runs == ["hold"]
            assert await server.custom_ids(done.output_file) == ["a", "b", "hold"]


async def test_a_new_start_reads_an_input_that_was_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = trio.Event()

    async def never(*arguments: Any) -> None:
        begun.set()
        await trio.sleep_forever()

    with trio.fail_after(60):
        with monkeypatch.context() as patched:
            patched.setattr(module, "read_input", never)
            async with serving(tmp_path) as server:
                batch = await server.begin("a")
                await begun.wait()
        async with serving(tmp_path) as server:
            assert (await server.ended(batch.id)).counts.completed == 1


async def test_a_new_start_ends_what_was_being_cancelled(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            batch = await server.begin("a", "hold")
            await server.until(batch.id, lambda found: found.counts.completed == 1)
            now = server.batches.now()
            await server.store.change_batch(batch.id, lambda found: found.cancelled(now))
        async with serving(tmp_path) as server:
            done = await server.ended(batch.id)
            assert done.state is BatchState.CANCELLED
            assert await server.custom_ids(done.output_file) == ["a"]


async def test_a_new_start_writes_the_files_of_a_job_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = trio.Event()

    async def never(*arguments: Any) -> None:
        begun.set()
        await trio.sleep_forever()

    with trio.fail_after(60):
        with monkeypatch.context() as patched:
            patched.setattr(BatchOutput, "keep", never)
            async with serving(tmp_path) as server:
                batch = await server.begin("a")
                await begun.wait()
                assert (await server.batches.find("ann", batch.id)).state is BatchState.FINALIZING
        async with serving(tmp_path) as server:
            done = await server.ended(batch.id)
            assert await server.custom_ids(done.output_file) == ["a"]
            names = {path.name for path in (tmp_path / "payloads").iterdir()}
            files = [await server.batches.find_file("ann", each) for each in (done.input_file, done.output_file)]
            assert names == {file.payload for file in files}


async def test_a_job_that_was_made_before_a_crash_is_not_made_again(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            batch = await server.begin("a", "hold")
            await server.until(batch.id, lambda found: found.counts.completed == 1)

            def back(found: Batch) -> Batch:
                return Batch(
                    found.id,
                    found.owner,
                    found.endpoint,
                    found.input_file,
                    found.input_payload,
                    found.created,
                    found.deadline,
                )

            await server.store.change_batch(batch.id, back)
        async with serving(tmp_path) as server:
            server.lines.released.set()
            done = await server.ended(batch.id)
            assert (done.state, done.counts.total) == (BatchState.COMPLETED, 2)
            assert server.lines.runs == ["hold"]


async def test_what_cannot_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.01)
    keep, failures = BatchOutput.keep, [Overloaded("full"), RuntimeError("a defect")]

    async def fails(self: Any, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await keep(self, *arguments)

    monkeypatch.setattr(BatchOutput, "keep", fails)
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            batch = await server.begin("a", "fail b")
            done = await server.ended(batch.id)
            assert (done.state, failures) == (BatchState.COMPLETED, [])
            assert await server.custom_ids(done.output_file) == ["a"]
            assert len(list((tmp_path / "payloads").iterdir())) == 3


async def test_others_find_nothing(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            batch = await server.begin("a")
            for call in (server.batches.find, server.batches.cancel):
                with pytest.raises(NotFound):
                    await call("bob", batch.id)
            with pytest.raises(NotFound):
                await server.batches.find_file("bob", batch.input_file)
            with pytest.raises(NotFound):
                await server.batches.remove_file("bob", batch.input_file)
            assert await server.batches.batches("bob", "", 9) == []
            await server.ended(batch.id)


@pytest.mark.parametrize("bound", ["MAX_UNENDED", "MAX_UNENDED_OF_ONE"])
async def test_batches_that_have_not_ended_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(module, bound, 1)
    with trio.fail_after(60):
        async with serving(tmp_path) as server:
            batch = await server.begin("hold")
            with pytest.raises(Overloaded):
                await server.begin("a")
            server.lines.released.set()
            await server.ended(batch.id)
            await server.until(batch.id, lambda _: not server.batches._running)
            await server.ended((await server.begin("a")).id)
