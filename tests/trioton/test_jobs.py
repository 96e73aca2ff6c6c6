"""Jobs of a server in the same process, with a real store and files."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import trio

from tests.e2e.repository import copy_python_model
from tests.trioton.test_server import settings
from trioton.errors import InvalidArgument, NotFound, Unsupported
from trioton.jobs import Counts, Forbidden, JobState
from trioton.messages import InferenceRequest, Tensor
from trioton.server import Server, open_server

pytestmark = pytest.mark.slow


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[Server]:
    if not (folder / "models").exists():
        copy_python_model("slow", folder / "models")
    made = settings(folder / "models", jobs_store=str(folder / "jobs"), jobs_allow_url=(str(folder / "data"),))
    with trio.fail_after(120):
        async with open_server(made) as running:
            yield running


def slow(value: int, seconds: float = 0.0) -> InferenceRequest:
    inputs = [
        Tensor.from_numpy("SECONDS", np.array([seconds], np.float32)),
        Tensor.from_numpy("VALUE", np.array([value], np.int64)),
    ]
    return InferenceRequest("slow", inputs)


async def test_a_job_from_its_requests_to_its_results(tmp_path: Path) -> None:
    async with server(tmp_path) as it:
        names = ["a", "b", "c"]
        job = await it.jobs.submit([slow(value) for value in range(3)], custom_ids=names, metadata={"k": "v"})
        done = await it.jobs.wait(job.id)
        assert (done.state, done.counts, done.metadata) == (JobState.SUCCEEDED, Counts(succeeded=3), {"k": "v"})
        found = [result async for result in it.jobs.results(job.id)]
        assert [(result.index, result.custom_id) for result in found] == [*enumerate(names)]
        assert [result.responses[0].outputs[0].as_numpy().tolist() for result in found] == [[0], [1], [2]]
        assert [each.id for each in await it.jobs.list(model="slow")] == [job.id]
        async with httpx.AsyncClient() as client:  # it is a job as others
            answer = await client.get(f"http://{it.addresses['http'][0]}:{it.addresses['http'][1]}/v2/jobs/{job.id}")
            assert answer.json()["state"] == "succeeded"
        await it.jobs.remove(job.id)
        with pytest.raises(NotFound):
            await it.jobs.find(job.id)


async def test_a_job_is_followed_and_cancelled(tmp_path: Path) -> None:
    async with server(tmp_path) as it:
        job = await it.jobs.submit([slow(value, 0.05) for value in range(500)])
        states, last = [], 0
        with it.jobs.events(job.id) as events:
            async for event in events:
                states.append(event.job.state)
                last = event.job.counts.succeeded
                if last > 3 and JobState.CANCELLING not in states:
                    await it.jobs.cancel(job.id)
        assert (states[0], states[-1]) == (JobState.QUEUED, JobState.CANCELLED)
        assert 3 < last < 500
        with it.jobs.events(job.id) as events:
            assert [event.job.state async for event in events] == [JobState.CANCELLED]


async def test_a_job_of_files_outlives_the_server(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = [json.dumps({"SECONDS": 0.01, "VALUE": value}) for value in range(300)]
    (tmp_path / "data/in.jsonl").write_text("\n".join(rows))
    place, output = f"{tmp_path}/data/in.jsonl", f"{tmp_path}/data/out"
    async with server(tmp_path) as it:
        job = await it.jobs.submit_files("slow", place, output, key="k")
        assert not (await it.jobs.wait(job.id, 0.5)).state.is_ended
        with it.jobs.events(job.id) as events:
            async for event in events:
                if event.job.counts.succeeded > 3:
                    break
    async with server(tmp_path) as it:
        assert (await it.jobs.submit_files("slow", place, output, key="k")).id == job.id
        assert (await it.jobs.wait(job.id)).counts == Counts(succeeded=300)
        with pytest.raises(InvalidArgument, match="are in "):
            [result async for result in it.jobs.results(job.id)]
    lines = [json.loads(line) for line in (tmp_path / "data/out/results-000000000000.jsonl").read_text().splitlines()]
    assert [line["response"]["outputs"][0]["data"][0] for line in lines] == [*range(300)]


async def test_what_is_no_job(tmp_path: Path) -> None:
    async with server(tmp_path) as it:
        jobs = it.jobs
        for requests, names in (([], []), ([slow(1)], ["a", "b"]), ([slow(1)] * 10_001, [])):
            with pytest.raises(InvalidArgument, match="expected 1 to 10000 requests"):
                await jobs.submit(requests, custom_ids=names)
        with pytest.raises(NotFound, match="none"):
            await jobs.submit([InferenceRequest("none", [])])
        with pytest.raises(InvalidArgument, match="no part in a sequence"):
            await jobs.submit([InferenceRequest("slow", [], sequence_id=7)])
        with pytest.raises(Forbidden, match="--jobs-allow-url"):
            await jobs.submit_files("slow", f"{tmp_path}/x.npz", f"{tmp_path}/out")
        with pytest.raises(InvalidArgument, match="expected an input_format"):
            await jobs.submit_files("slow", f"{tmp_path}/data", f"{tmp_path}/data/out")
        first = await jobs.submit([slow(1)], key="k")
        assert (await jobs.submit([slow(1)], key="k")).id == first.id
        with pytest.raises(InvalidArgument, match="was used for another request"):
            await jobs.submit([slow(2)], key="k")


async def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    """Neither a store nor JSON has a form for it."""
    async with server(tmp_path) as it:
        half, refused = "a\ud800", pytest.raises(InvalidArgument, match="half of a surrogate pair")
        named = slow(1)
        named.id = half
        with refused:
            await it.jobs.submit([slow(1)], custom_ids=[half])
        with refused:
            await it.jobs.submit([named])
        with refused:
            await it.jobs.submit([slow(1)], key=half)
        with refused:
            await it.jobs.submit_files("slow", f"{tmp_path}/data/{half}.npz", f"{tmp_path}/data/out")
        assert await it.jobs.list() == []
        job = await it.jobs.submit([slow(1)], metadata={"k": half})  # which is kept as it is
        assert (await it.jobs.find(job.id)).metadata == {"k": half}


async def test_a_server_without_a_store_has_no_jobs(tmp_path: Path) -> None:
    copy_python_model("slow", tmp_path / "models")
    async with open_server(settings(tmp_path / "models")) as it:
        with pytest.raises(Unsupported, match="set jobs_store"):
            _ = it.jobs
