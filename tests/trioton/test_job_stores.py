"""Stores of other packages, by their entry points: with or without what batches need."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from actors.jobs import registry
from actors.jobs.sqlite.store import SqliteStore
from tests.e2e.repository import copy_python_model
from tests.trioton.test_server import settings
from trioton.job_stores import BatchStore, JobStore, Limits
from trioton.server import open_server

pytestmark = pytest.mark.slow


class OfJobsAlone:
    """A store with the methods of `JobStore`, and no others."""

    def __init__(self, store: SqliteStore) -> None:
        for name in (name for name in vars(JobStore) if not name.startswith("_")):
            setattr(self, name, getattr(store, name))


def make_whole(place: str, limits: Limits) -> SqliteStore:
    return SqliteStore(Path(place), limits)


def make_of_jobs(place: str, limits: Limits) -> Any:
    return OfJobsAlone(SqliteStore(Path(place), limits))


@pytest.mark.parametrize(("make", "status"), [("make_whole", 200), ("make_of_jobs", 501)])
async def test_a_store_keeps_batches_where_it_has_their_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: str, status: int
) -> None:
    point = metadata.EntryPoint("own", f"{__name__}:{make}", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    assert isinstance(globals()[make](str(tmp_path / "jobs"), Limits()), BatchStore) is (status == 200)
    copy_python_model("slow", tmp_path / "models")
    made = settings(tmp_path / "models", jobs_store=f"own://{tmp_path / 'jobs'}")
    with trio.fail_after(120):
        async with open_server(made) as it, httpx.AsyncClient() as client:
            address = "http://{}:{}".format(*it.addresses["http"])
            assert (await client.get(f"{address}/v2/jobs")).status_code == 200
            assert (await client.get(f"{address}/v1/batches")).status_code == status
