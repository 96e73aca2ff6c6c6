"""A job store that several servers share, as seen by one of them: what others do is done here, too. Of any store that
is a `SharedJobStore`: this one is a stranger's."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from trio.testing import MockClock

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from actors.jobs.data.allowed import AllowedPlaces
from actors.jobs.data.files import JobFiles
from actors.jobs.inference import InferenceExecutor
from actors.jobs.jobs import ServerJobs
from actors.jobs.transfer import RowParts
from backends.registry import BackendRegistry
from protocol.http.codec.job_rows import result_line
from protocol.jobs.job import Counts, Job, new_job_id
from protocol.jobs.payload import encode_request
from protocol.jobs.source import DataFormat, DataPlace, JobSource, Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import JobChange, NewItem, NewJob, SharedJobStore
from tests.actors.core.test_server_core import add_model
from tests.actors.fakes import FakeBackend, fake_backend, request
from tests.actors.jobs.direct_store import DirectStore
from tests.actors.jobs.test_transfer import plain_decoder


class SharedStore(DirectStore):
    """Says what it is told to say. `elsewhere` are jobs whose rows another server takes there and back."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.send, self._receive = trio.open_memory_channel[JobChange](math.inf)
        self.elsewhere: set[str] = set()

    async def changes(self) -> Sequence[JobChange]:
        return [await self._receive.receive()]

    async def sources(self) -> Sequence[tuple[Job, Progress]]:
        return [(job, progress) for job, progress in await super().sources() if job.id not in self.elsewhere]


@dataclass
class Fixture:
    jobs: ServerJobs
    store: SharedStore
    folder: Path

    async def add_elsewhere(self, *ids: str, source: JobSource | None = None) -> Job:
        """As another server would: nobody here is told."""
        items = [NewItem("m", encode_request(request(id=id))) for id in ids]
        now = self.jobs.now()
        made = NewJob(new_job_id(now), "ann", items, now + 1000, model="m", source=source)
        if source is not None:
            self.store.elsewhere.add(made.id)
        job, _ = await self.store.add(made, now)
        return job

    def tell(self, job: Job, *, is_cancelled: bool = False, has_items: bool = False) -> None:
        self.store.send.send_nowait(JobChange(job.id, is_cancelled=is_cancelled, has_items=has_items))


@asynccontextmanager
async def server(folder: Path, backend: type[FakeBackend]) -> AsyncIterator[Fixture]:
    add_model(folder / "models", "m")
    store = SharedStore(folder)
    assert isinstance(store, SharedJobStore)
    settings = CoreSettings((folder / "models",), control_mode=ControlMode.EXPLICIT, load_models=("m",))
    core = ServerCore(settings, BackendRegistry({"fake": backend}))
    executor = InferenceExecutor(core)
    parts = RowParts(JobFiles(AllowedPlaces([folder]), {}, result_line), executor, plain_decoder)
    jobs = ServerJobs(store, executor, rows=parts, now=trio.current_time)
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        await nursery.start(jobs.run)
        yield Fixture(jobs, store, folder)
        nursery.cancel_scope.cancel()


async def test_items_that_come_at_another_server_are_run_here(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend(seconds=0.01)) as it:
        await trio.sleep(5.5)
        job = await it.add_elsewhere("a")
        it.tell(job, has_items=True)
        began = trio.current_time()
        done = await it.jobs.wait("ann", job.id, 100)
        assert (done.state, done.counts) == (JobState.SUCCEEDED, Counts(succeeded=1))
        assert trio.current_time() - began < 0.2


async def test_what_is_cancelled_at_another_server_is_given_up_here(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend(seconds=500)) as it:
        job = await it.add_elsewhere("a", "b")
        it.tell(job, has_items=True)
        await trio.sleep(1)
        cancelled = await it.store.cancel("ann", job.id, it.jobs.now())
        assert cancelled is not None
        assert cancelled.state is JobState.CANCELLING
        it.tell(job, is_cancelled=True)
        assert (await it.jobs.wait("ann", job.id, 10)).state is JobState.CANCELLED


async def test_who_follows_a_job_of_another_server_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend()) as it:
        with it.jobs.follow("job_1") as follower:
            it.store.send.send_nowait(JobChange("job_1"))
            await follower.changed()
            it.store.send.send_nowait(JobChange(""))
            await follower.changed()
            await follower.changed()  # once in a second, whatever was missed


async def test_a_store_that_fails_is_asked_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend()) as it:
        it.store.send.send_nowait("no change")  # type: ignore[arg-type]
        await trio.sleep(5)
        with it.jobs.follow("job_1") as follower:
            it.store.send.send_nowait(JobChange("job_1"))
            await follower.changed()


async def test_rows_of_a_server_that_has_ended_are_gone_on_with_and_given_up(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"IN": [1, 0]}\n' * 100)
    source = JobSource(
        "m",
        DataPlace(str(tmp_path / "in.jsonl"), DataFormat.JSON_LINES),
        DataPlace(str(tmp_path / "out"), DataFormat.JSON_LINES),
    )
    async with server(tmp_path, fake_backend()) as it:
        job = await it.add_elsewhere(source=source)
        with trio.fail_after(60):
            assert it.jobs._transfers.running == set()
            it.store.elsewhere.clear()
            done = await it.jobs.wait("ann", job.id, 60)
            assert (done.state, done.counts, done.written) == (JobState.SUCCEEDED, Counts(succeeded=100), 100)


async def test_rows_that_another_server_goes_on_with_are_left_alone(tmp_path: Path) -> None:
    source = JobSource(
        "other",  # which is not there: the transfer waits for it
        DataPlace(str(tmp_path / "in.jsonl"), DataFormat.JSON_LINES),
        DataPlace(str(tmp_path / "out"), DataFormat.JSON_LINES),
    )
    (tmp_path / "in.jsonl").write_text("{}\n")
    async with server(tmp_path, fake_backend()) as it:
        job = await it.add_elsewhere(source=source)
        it.store.elsewhere.clear()
        running = it.jobs._transfers.running
        with trio.fail_after(60), it.jobs.follow(job.id) as follower:
            while job.id not in running:
                await follower.changed()  # once in a second
            it.store.elsewhere.add(job.id)
            while job.id in running:
                await follower.changed()
        found = await it.store.find("ann", job.id)
        assert found is not None
        assert found.state is JobState.QUEUED
