"""Jobs whose rows come from files, on the ordinary core and the real store: what becomes of them when something is in
the way, and that each row is written once. In real time: files and the store have threads."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from actors.jobs.data.allowed import AllowedPlaces
from actors.jobs.data.files import JobFiles
from actors.jobs.inference import InferenceExecutor
from actors.jobs.jobs import ServerJobs
from actors.jobs.pace import Pace
from actors.jobs.sqlite.store import SqliteStore
from actors.jobs.steps import FILE_ROWS
from actors.jobs.transfer import CHUNK_ROWS, Decoder, RowParts
from backends.registry import BackendRegistry
from protocol.errors import QuotaExceeded, Unsupported
from protocol.http.codec.job_rows import RowDecoder, result_line
from protocol.jobs.job import Counts, Job, new_job_id
from protocol.jobs.model_inputs import ModelInputs
from protocol.jobs.payload import encode_request
from protocol.jobs.rows import FileRow
from protocol.jobs.source import DataFormat, DataPlace, JobSource
from protocol.jobs.states import JobState
from protocol.jobs.store import Limits, NewJob
from protocol.messages import InferenceRequest
from tests.actors.core.test_server_core import add_model
from tests.actors.fakes import FakeBackend, fake_backend, request

LIMITS = Limits(reserve=0)


class Executor(InferenceExecutor):
    """Refuses the rows whose turn is in `refused`, each once."""

    refused: frozenset[int] = frozenset()
    _turn = -1

    def admit_row(self, owner: str, model: str, size: int) -> None:
        self._turn += 1
        if self._turn in self.refused:
            raise QuotaExceeded("too much now", retry_after=0.01)


def plain_decoder(inputs: ModelInputs, version: int) -> Decoder:
    return RowDecoder(inputs, version, 1 << 20)


@dataclass
class Fixture:
    jobs: ServerJobs
    core: ServerCore
    store: SqliteStore
    executor: Executor
    folder: Path
    pace: Pace

    async def submit(self, *, seconds: float = 100.0, output: str = "out") -> Job:
        source = JobSource(
            "m",
            DataPlace(str(self.folder / "in.jsonl"), DataFormat.JSON_LINES),
            DataPlace(str(self.folder / output), DataFormat.JSON_LINES),
        )
        now = self.jobs.now()
        job, _ = await self.jobs.add(NewJob(new_job_id(now), "ann", (), now + seconds, model="m", source=source))
        return job

    async def ended(self, job: Job) -> Job:
        with trio.fail_after(60):
            return await self.jobs.wait("ann", job.id, 60)

    async def until(self, job: Job, is_so: Callable[[Job], bool]) -> Job:
        with trio.fail_after(60), self.jobs.follow(job.id) as follower:
            while not is_so(job):
                with trio.move_on_after(0.1):
                    await follower.changed()
                job = await self.jobs.find("ann", job.id)
        return job

    def lines(self, kind: str = "results", output: str = "out") -> list[Any]:
        files = sorted((self.folder / output).glob(f"{kind}-*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def rows(self) -> list[tuple[int, float]]:
        return [(line["index"], line["response"]["outputs"][0]["data"][0]) for line in self.lines()]


@asynccontextmanager
async def server(
    folder: Path,
    backend: type[FakeBackend] | None = None,
    *,
    decoder: Callable[[ModelInputs, int], Decoder] = plain_decoder,
    limits: Limits = LIMITS,
    load: bool = True,
) -> AsyncIterator[Fixture]:
    """A core and its jobs. Left, all is cancelled, as by a crash; what is on the disk stays."""
    add_model(folder / "models", "m")
    store = SqliteStore(folder / "store", limits)
    settings = CoreSettings((folder / "models",), control_mode=ControlMode.EXPLICIT, load_models=("m",) if load else ())
    core = ServerCore(settings, BackendRegistry({"fake": backend or fake_backend()}))
    executor = Executor(core)
    parts = RowParts(JobFiles(AllowedPlaces([folder]), {}, result_line), executor, decoder)
    pace = Pace()
    jobs = ServerJobs(store, executor, rows=parts, pace=pace)
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        await nursery.start(jobs.run)
        yield Fixture(jobs, core, store, executor, folder, pace)
        nursery.cancel_scope.cancel()


def write_rows(folder: Path, rows: int) -> None:
    (folder / "in.jsonl").write_text("".join(f'{{"IN": [{row}, 0]}}\n' for row in range(rows)))


def expected(rows: int) -> list[tuple[int, float]]:
    return [(row, float(row)) for row in range(rows)]


async def test_all_rows_are_written_and_forgotten(tmp_path: Path) -> None:
    write_rows(tmp_path, 1500)
    async with server(tmp_path) as it:
        job = await it.ended(await it.submit())
        assert (job.state, job.counts, job.written) == (JobState.SUCCEEDED, Counts(succeeded=1500), 1500)
        assert job.byte_size == 0
        assert it.rows() == expected(1500)
        assert await it.store.items(job.id, 0, 10) == []
        assert (await it.store.figures()).byte_size == 0


async def test_beside_live_requests_all_rows_are_written_too(tmp_path: Path) -> None:
    write_rows(tmp_path, 100)
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write('{"custom_id": "bad", "IN": [0]}\n{"custom_id": true, "IN": [0, 0]}\n')
    async with server(tmp_path) as it, trio.open_nursery() as nursery:

        async def come() -> None:
            while True:
                it.pace.note_live(trio.current_time())
                await trio.sleep(0.002)

        nursery.start_soon(come)
        job = await it.ended(await it.submit())
        nursery.cancel_scope.cancel()
        assert (job.state, job.counts) == (JobState.SUCCEEDED, Counts(succeeded=100, failed=2))
    assert it.rows() == expected(100)
    errors = [json.loads(line) for line in (tmp_path / "out" / "errors-000000000000.jsonl").read_text().splitlines()]
    assert [(error["index"], error.get("custom_id")) for error in errors] == [(100, "bad"), (101, None)]


@pytest.mark.slow
async def test_results_are_files_of_so_many_rows(tmp_path: Path) -> None:
    rows = FILE_ROWS + 100
    write_rows(tmp_path, rows)
    async with server(tmp_path) as it:
        await it.ended(await it.submit())
        assert it.rows() == expected(rows)
        names = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert names == ["results-000000000000.jsonl", f"results-{FILE_ROWS:012}.jsonl"]


async def test_an_input_without_rows_succeeds(tmp_path: Path) -> None:
    write_rows(tmp_path, 0)
    async with server(tmp_path) as it:
        job = await it.ended(await it.submit())
        assert (job.state, job.counts) == (JobState.SUCCEEDED, Counts())


async def test_a_crash_costs_no_row(tmp_path: Path) -> None:
    write_rows(tmp_path, 700)
    async with server(tmp_path, fake_backend(seconds=0.01)) as it:
        job = await it.until(await it.submit(), lambda job: job.counts.succeeded > 50)
        assert not job.state.is_ended
    async with server(tmp_path) as it:
        job = await it.ended(job)
        assert (job.state, job.counts) == (JobState.SUCCEEDED, Counts(succeeded=700))
        assert it.rows() == expected(700)


async def test_a_model_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    write_rows(tmp_path, 3)
    async with server(tmp_path, load=False) as it:
        job = await it.until(await it.submit(), lambda job: job.error is not None)
        assert job.error is not None
        assert (job.state, job.error.kind) == (JobState.QUEUED, "UNAVAILABLE")
        await it.core.load_model("m")
        job = await it.ended(job)
        assert (job.state, job.error) == (JobState.SUCCEEDED, None)


async def test_a_quota_is_waited_for(tmp_path: Path) -> None:
    write_rows(tmp_path, 20)
    async with server(tmp_path) as it:
        it.executor.refused = frozenset({0, 5, 6, 20})
        assert (await it.ended(await it.submit())).state is JobState.SUCCEEDED
        assert it.rows() == expected(20)


async def test_a_store_without_room_gets_it_by_what_is_written(tmp_path: Path) -> None:
    write_rows(tmp_path, 1500)
    chunk = CHUNK_ROWS * sum(len(part) for part in encode_request(request()))
    async with server(tmp_path, limits=Limits(byte_size=chunk * 3 // 2, reserve=0)) as it:
        job = await it.ended(await it.submit())
        assert job.state is JobState.SUCCEEDED
        assert it.rows() == expected(1500)
        assert len(list((tmp_path / "out").iterdir())) > 1


async def test_an_output_that_cannot_be_ends_the_job(tmp_path: Path) -> None:
    write_rows(tmp_path, 5)
    (tmp_path / "out").write_text("a file")
    async with server(tmp_path) as it:
        job = await it.ended(await it.submit())
        assert job.error is not None
        assert (job.state, job.error.message) == (JobState.FAILED, "the output cannot be written: File exists")
        assert await it.store.items(job.id, 0, 10) == []


async def test_an_input_that_has_changed_ends_the_job_when_its_rows_are_done(tmp_path: Path) -> None:
    write_rows(tmp_path, 700)  # two chunks
    gate = threading.Event()

    def decoder(inputs: ModelInputs, version: int) -> Decoder:
        class Waiting(RowDecoder):
            def decode(self, row: FileRow) -> tuple[str, InferenceRequest]:
                custom_id, request = super().decode(row)
                if request.inputs[0].as_numpy()[0, 0] == 600:
                    gate.wait(60)
                return custom_id, request

        return Waiting(inputs, version, 1 << 20)

    async with server(tmp_path, decoder=decoder) as it:
        job = await it.until(await it.submit(), lambda job: job.counts.succeeded == 512)
    gate.set()
    write_rows(tmp_path, 800)
    async with server(tmp_path) as it:
        job = await it.ended(job)
        assert job.error is not None
        assert (job.state, job.counts) == (JobState.FAILED, Counts(succeeded=512))
        assert "'in.jsonl' has changed" in job.error.message
        assert it.rows() == expected(512)


async def test_a_deadline_passes_and_what_is_done_is_written(tmp_path: Path) -> None:
    write_rows(tmp_path, 2000)
    async with server(tmp_path, fake_backend(seconds=0.05)) as it:
        job = await it.ended(await it.submit(seconds=1.5))
        assert job.state is JobState.EXPIRED
        assert job.counts.expired > 0
        assert len(it.rows()) == job.counts.succeeded


async def test_a_job_is_cancelled_while_its_input_hangs(tmp_path: Path) -> None:
    write_rows(tmp_path, 5)
    gate = threading.Event()

    def decoder(inputs: ModelInputs, version: int) -> Decoder:
        class Hanging(RowDecoder):
            def decode(self, row: FileRow) -> tuple[str, InferenceRequest]:
                gate.wait()
                return super().decode(row)

        return Hanging(inputs, version, 1 << 20)

    try:
        async with server(tmp_path, decoder=decoder) as it:
            job = await it.submit()
            await trio.testing.wait_all_tasks_blocked(0.05)
            await it.jobs.cancel("ann", job.id)
            assert (await it.ended(job)).state is JobState.CANCELLED
            await it.jobs.remove("ann", job.id)
    finally:
        gate.set()


async def test_a_defect_fails_one_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_rows(tmp_path, 5)
    defects = iter([True])

    def decoder(inputs: ModelInputs, version: int) -> Decoder:
        if next(defects, False):
            raise ZeroDivisionError("a defect")
        return plain_decoder(inputs, version)

    async with server(tmp_path, decoder=decoder) as it:
        job = await it.ended(await it.submit())
        assert job.error is not None
        assert (job.state, job.error.kind) == (JobState.FAILED, "INTERNAL")
        assert (await it.ended(await it.submit())).state is JobState.SUCCEEDED
    assert "could not be read or written" in caplog.text


async def test_a_server_without_files_refuses_sources(tmp_path: Path) -> None:
    write_rows(tmp_path, 5)
    async with server(tmp_path) as it:
        job = await it.submit()
    core = ServerCore(CoreSettings(()), BackendRegistry({}))
    jobs = ServerJobs(SqliteStore(tmp_path / "store", LIMITS), InferenceExecutor(core))
    async with trio.open_nursery() as nursery:
        await nursery.start(jobs.run)
        source = job.source
        with pytest.raises(Unsupported, match="takes no jobs with inputs by URL"):
            await jobs.add(NewJob("job_1", "ann", (), jobs.now() + 10, source=source))
        nursery.cancel_scope.cancel()
