"""The jobs of a server on the ordinary core, in virtual time: run, retried, cancelled, expired, drained, resumed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from actors.jobs.inference import InferenceExecutor
from actors.jobs.jobs import ServerJobs
from backends.registry import BackendRegistry
from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable
from protocol.jobs.job import Counts, ItemError, Job, new_job_id
from protocol.jobs.payload import decode_responses, encode_request
from protocol.jobs.states import JobState
from protocol.jobs.store import Limits, NewItem, NewJob
from protocol.messages import InferenceRequest
from tests.actors.core.test_server_core import PBTXT, add_model
from tests.actors.fakes import FakeBackend, fake_backend, request, tensor
from tests.actors.jobs.direct_store import DirectStore


@dataclass
class Fixture:
    jobs: ServerJobs
    core: ServerCore
    store: DirectStore
    backend: type[FakeBackend]

    async def add(self, *ids: str, seconds: float = 1000.0, key: str = "") -> Job:
        items = [NewItem("m", encode_request(request(id=id, value=float(len(id))))) for id in ids]
        now = self.jobs.now()
        job, _ = await self.jobs.add(NewJob(new_job_id(now), "ann", items, now + seconds, model="m", key=key))
        return job

    async def ended(self, job: Job) -> Job:
        ended = await self.jobs.wait("ann", job.id, 10_000)
        assert ended.state.is_ended
        return ended


@asynccontextmanager
async def server(
    folder: Path,
    backend: type[FakeBackend],
    *,
    most: int = 64,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    config: str = PBTXT,
) -> AsyncIterator[Fixture]:
    """A core and its jobs. Left, all is cancelled, as by a crash; what is on the disk stays."""
    repository = folder / "models"
    add_model(repository, "m", config=config)
    store = DirectStore(folder, limits)
    settings = CoreSettings((repository,), control_mode=ControlMode.EXPLICIT, load_models=("m",))
    core = ServerCore(settings, BackendRegistry({"fake": backend}))
    jobs = ServerJobs(store, InferenceExecutor(core), most_in_flight=most, now=trio.current_time)
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        await nursery.start(jobs.run)
        yield Fixture(jobs, core, store, backend)
        nursery.cancel_scope.cancel()


async def test_a_job_runs_and_its_result_is_kept(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend(seconds=1)) as it:
        job = await it.add("abc")
        assert job.state is JobState.QUEUED
        done = await it.ended(job)
        assert (done.state, done.counts, done.model) == (JobState.SUCCEEDED, Counts(succeeded=1), "m")
        (item,) = await it.jobs.items(job.id, 0, 10, results=True)
        assert item.result is not None
        (response,) = decode_responses(item.result)
        assert (response.id, response.outputs[0].as_numpy().tolist()) == ("abc", [[3.0, 3.0]])
        assert it.jobs.figures.items == {JobState.SUCCEEDED: 1}


async def test_items_of_many_jobs_share_batches(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend(seconds=1)) as it:
        jobs = [await it.add(*"abcd") for _ in range(5)]
        for job in jobs:
            assert (await it.ended(job)).counts == Counts(succeeded=4)
        assert len(it.backend.batches) < 10
        assert max(map(len, it.backend.batches)) == 4


async def test_a_model_that_is_full_does_not_keep_another_from_its_items(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with server(tmp_path, fake_backend(seconds=100)) as it:
        add_model(tmp_path / "models", "n")
        await it.core.load_model("n")
        await it.add(*["a"] * 30)
        await trio.sleep(0.1)
        items = [NewItem("n", encode_request(InferenceRequest("n", [tensor(1)], id=id))) for id in "abcd"]
        now = it.jobs.now()
        job, _ = await it.jobs.add(NewJob(new_job_id(now), "ann", items, now + 1000, model="n"))
        await trio.sleep(0.2)
        assert (await it.jobs.find("ann", job.id)).counts == Counts(running=4)


async def test_others_see_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend()) as it:
        job = await it.add("a")
        for call in (it.jobs.find, it.jobs.cancel, it.jobs.remove):
            with pytest.raises(NotFound, match=f"there is no job '{job.id}'"):
                await call("bob", job.id)


async def test_an_item_that_fails_says_why(tmp_path: Path, autojump_clock: MockClock) -> None:
    def on_execute(_: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        if any(each.id == "bad" for each in requests):
            raise InvalidArgument("it is bad")

    async with server(tmp_path, fake_backend(on_execute=on_execute), most=1) as it:
        failed = await it.ended(await it.add("bad"))
        assert (failed.state, failed.error) == (JobState.FAILED, ItemError("INVALID_ARG", "it is bad"))
        mixed = await it.ended(await it.add("good", "bad", "fine"))
        assert (mixed.state, mixed.counts) == (JobState.SUCCEEDED, Counts(succeeded=2, failed=1))
        items = await it.jobs.items(mixed.id, 0, 10)
        assert [item.state for item in items] == [JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED]


async def test_what_is_not_available_is_tried_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    def on_execute(backend: FakeBackend, _: object) -> None:
        if trio.current_time() < until:
            raise Unavailable("not now")

    until = trio.current_time() + 60
    async with server(tmp_path, fake_backend(on_execute=on_execute)) as it:
        done = await it.ended(await it.add("a"))
        assert done.state is JobState.SUCCEEDED
        assert done.error is None
        assert 3 < it.jobs.figures.retries < 12
        (item,) = await it.jobs.items(done.id, 0, 1)
        assert item.attempt == it.jobs.figures.retries + 1


async def test_a_model_that_is_away_is_not_asked_for_every_item(tmp_path: Path, autojump_clock: MockClock) -> None:
    def on_execute(backend: FakeBackend, _: object) -> None:
        if trio.current_time() < until:
            raise Unavailable("not now")

    until = trio.current_time() + 60
    async with server(tmp_path, fake_backend(on_execute=on_execute)) as it:
        job = await it.add(*["a"] * 200)
        with trio.move_on_after(50):
            await it.jobs.wait("ann", job.id, 10_000)
        assert it.jobs.figures.retries < 100
        assert (await it.ended(job)).counts == Counts(succeeded=200)


async def test_a_job_expires_wherever_it_is(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend(seconds=100)) as it:
        began = trio.current_time()
        job = await it.add(*["a"] * 20, seconds=10)
        done = await it.ended(job)
        assert (done.state, done.counts) == (JobState.EXPIRED, Counts(expired=20))
        assert 10 <= trio.current_time() - began < 12


async def test_a_cancelled_job_ends_soon_wherever_it_is(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One item runs in the model, others wait in its queue, in the runner, and in the store."""
    async with server(tmp_path, fake_backend(seconds=100)) as it:
        job = await it.add(*["a"] * 100)
        await trio.sleep(1)
        began = trio.current_time()
        found = await it.jobs.find("ann", job.id)
        assert found.counts.running > 4
        assert found.counts.queued > 4
        cancelling = await it.jobs.cancel("ann", job.id)
        assert cancelling.state is JobState.CANCELLING
        done = await it.ended(job)
        assert (done.state, done.counts) == (JobState.CANCELLED, Counts(cancelled=100))
        assert trio.current_time() - began < 0.1
        again = await it.jobs.cancel("ann", job.id)
        assert again.state is JobState.CANCELLED


@pytest.mark.parametrize("waits", range(12))
async def test_a_job_can_be_cancelled_at_any_step(tmp_path: Path, autojump_clock: MockClock, waits: int) -> None:
    async with server(tmp_path, fake_backend(seconds=100)) as it:
        job = await it.add(*"abcdefgh")
        for _ in range(waits):
            await trio.lowlevel.checkpoint()
        await it.jobs.cancel("ann", job.id)
        began = trio.current_time()
        assert (await it.ended(job)).state is JobState.CANCELLED
        assert trio.current_time() - began < 1.5


async def test_a_job_that_is_removed_is_cancelled_first(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend(seconds=100)) as it:
        job = await it.add(*"abcdefgh")
        await trio.sleep(1)
        began = trio.current_time()
        await it.jobs.remove("ann", job.id)
        assert trio.current_time() - began < 1.5
        with pytest.raises(NotFound):
            await it.jobs.find("ann", job.id)


async def test_jobs_wait_while_live_requests_do(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One instance, batches of four: as long as four live requests are there, no item runs."""
    async with server(tmp_path, fake_backend(seconds=1)) as it, trio.open_nursery() as nursery:

        async def live() -> None:
            for _ in range(5):
                await it.core.infer(request(id="live"))

        for _ in range(8):
            nursery.start_soon(live)
        await wait_all_tasks_blocked()
        job = await it.add(*["job"] * 8)
        done = await it.ended(job)
        assert done.counts == Counts(succeeded=8)
        assert it.backend.batches[:10] == [["live"] * 4] * 10


async def test_items_fill_batches_that_live_requests_leave_room_in(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The batcher waits for others, and items of jobs come while it does."""
    config = PBTXT.replace("dynamic_batching {", "dynamic_batching { max_queue_delay_microseconds: 100000 ")
    async with server(tmp_path, fake_backend(seconds=1), config=config) as it, trio.open_nursery() as nursery:

        async def live() -> None:
            for _ in range(6):
                await it.core.infer(request(id="live"))

        nursery.start_soon(live)
        await wait_all_tasks_blocked()
        done = await it.ended(await it.add(*["job"] * 6))
        assert done.counts == Counts(succeeded=6)
        assert any(set(batch) == {"live", "job"} for batch in it.backend.batches)


async def test_a_crash_loses_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Ended by cancellation in mid-job, again and again, without any farewell."""
    backend = fake_backend(seconds=1)
    async with server(tmp_path, backend) as it:
        job = await it.add(*map(str, range(40)))
        kept = await it.add("kept", key="k")
        await trio.sleep(1.5)
    for _ in range(3):
        async with server(tmp_path, backend, limits=replace(Limits(), max_interruptions=100)) as it:
            await trio.sleep(1.5)
    async with server(tmp_path, backend, limits=replace(Limits(), max_interruptions=100)) as it:
        assert (await it.ended(job)).counts == Counts(succeeded=40)
        assert (await it.ended(kept)).counts == Counts(succeeded=1)
        assert (await it.add("kept", key="k")).id == kept.id
        items = await it.jobs.items(job.id, 0, 100, results=True)
        assert [decode_responses(item.result or b"")[0].id for item in items] == [str(number) for number in range(40)]


async def test_what_ends_the_server_each_time_has_failed_at_last(tmp_path: Path, autojump_clock: MockClock) -> None:
    backend = fake_backend(seconds=100)
    limits = replace(Limits(), max_interruptions=3)
    async with server(tmp_path, backend, limits=limits) as it:
        job = await it.add("a")
        await trio.sleep(1)
    for _ in range(2):
        async with server(tmp_path, backend, limits=limits) as it:
            await trio.sleep(1)
    async with server(tmp_path, backend, limits=limits) as it:
        done = await it.jobs.find("ann", job.id)
        assert done.state is JobState.FAILED
        assert done.error is not None
        assert done.error.message.startswith("the server ended 3 times while this ran")


async def test_what_may_have_crashed_the_server_runs_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Others that ran at the same time are not taken with it."""
    backend = fake_backend(seconds=10)
    for number in range(2):
        async with server(tmp_path, backend) as it:
            if not number:
                job = await it.add(*"abcd")
            await trio.sleep(1)
    backend = fake_backend(seconds=1)
    async with server(tmp_path, backend) as it:
        later = await it.add(*"xyz")
        assert (await it.ended(job)).counts == Counts(succeeded=4)
        assert (await it.ended(later)).counts == Counts(succeeded=3)
    assert sorted(backend.batches[:4]) == [["a"], ["b"], ["c"], ["d"]]


async def test_a_job_waits_for_a_model_that_is_not_loaded_yet(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend()) as it:
        request = InferenceRequest("later", [tensor()])
        new = NewJob(new_job_id(0), "ann", [NewItem("later", encode_request(request))], 1e9, model="later")
        job, _ = await it.jobs.add(new)
        await trio.sleep(5)
        found = await it.jobs.find("ann", job.id)
        assert (found.state, found.counts.queued) == (JobState.RUNNING, 1)
        assert found.error is not None
        assert "'later' is not found" in found.error.message
        add_model(tmp_path / "models", "later")
        await it.core.load_model("later")
        done = await it.ended(job)
        assert (done.state, done.error) == (JobState.SUCCEEDED, None)


async def test_a_stopped_server_gives_back_what_runs(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What ends within a second is kept; giving back counts as no attempt and no interruption."""
    backend = fake_backend(seconds=10)
    async with server(tmp_path, backend) as it:
        job = await it.add(*"abcdefghijkl")
        await trio.sleep(1)
        it.jobs.stop()
        with pytest.raises(Unavailable, match="no jobs are taken now"):
            await it.add("late")
        began = trio.current_time()
        await trio.sleep(3)
        found = await it.jobs.find("ann", job.id)
        assert (found.state, found.counts) == (JobState.RUNNING, Counts(queued=12))
        assert it.core.accepted() == {}
        assert trio.current_time() - began == 3
        assert {item.attempt for item in await it.jobs.items(job.id, 0, 100)} == {0}
    async with server(tmp_path, backend) as it:
        assert (await it.jobs.find("ann", job.id)).state in (JobState.QUEUED, JobState.RUNNING)
        assert (await it.ended(job)).counts == Counts(succeeded=12)


async def test_what_runs_goes_on_while_the_disk_is_full(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with server(tmp_path, fake_backend(seconds=1)) as it:
        job = await it.add(*["a"] * 20)
        await trio.sleep(0.5)
        it.store.is_full = True
        with pytest.raises(ServerError, match="there is no room on the disk"):
            await it.add("b")
        await trio.sleep(60)
        found = await it.jobs.find("ann", job.id)
        assert found.counts.succeeded == 0
        it.store.is_full = False
        assert (await it.ended(job)).counts == Counts(succeeded=20)
        assert len([each for each in caplog.records if "jobs wait until it works again" in each.message]) == 1


async def test_a_defect_fails_the_item_and_nothing_else(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend()) as it:
        job = (await it.jobs.add(NewJob(new_job_id(0), "ann", [NewItem("m", [b"no request"])], 1e9, model="m")))[0]
        done = await it.ended(job)
        assert done.state is JobState.FAILED
        assert done.error is not None
        assert done.error.message.startswith("the request that was kept cannot be read")
        assert (await it.ended(await it.add("a"))).state is JobState.SUCCEEDED


async def test_a_follower_sees_each_change(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend(seconds=1), most=1) as it:
        job = await it.add(*"ab")
        seen: list[Counts] = []
        with it.jobs.follow(job.id) as follower:
            found = await it.jobs.find("ann", job.id)
            while not found.state.is_ended:
                seen.append(found.counts)
                await follower.changed()
                found = await it.jobs.find("ann", job.id)
        assert Counts(running=1, succeeded=1) in seen or Counts(queued=1, succeeded=1) in seen
        assert not it.jobs._followers


async def test_wait_gives_up_after_its_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, fake_backend(seconds=100)) as it:
        job = await it.add("a")
        began = trio.current_time()
        assert (await it.jobs.wait("ann", job.id, 3.0)).state is JobState.RUNNING
        assert trio.current_time() - began == 3.0
