"""Batches and files in the SQLite job store: whose they are, what outlives a crash, what is forgotten and when."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from actors.jobs.sqlite import schema
from protocol.jobs.states import JobState
from protocol.jobs.webhook import DeliveryRoom, Webhook
from tests.actors.jobs.batch_samples import NOW, kept
from tests.actors.jobs.sqlite.test_store import LIMITS, opened

HOOK = Webhook("https://a/hook", "https://a", frozenset({JobState.SUCCEEDED}))
ROOM = DeliveryRoom(total=64, per_host=4, per_owner=8)


def payloads(folder: Path) -> set[str]:
    return set(os.listdir(folder / "payloads"))


async def test_what_is_not_kept_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        writer = await store.file_writer()
        await writer.write(b"x" * 100)
        await writer.finish()
        await writer.close()
        assert payloads(tmp_path) == set()
        writer = await store.file_writer()
        await writer.write(b"x" * 100)
        await writer.close()
        assert payloads(tmp_path) == set()
        assert store._uploads.byte_size == 0


async def test_what_a_crash_has_left_of_an_upload_is_swept(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        file = await kept(store, b"x")
        (tmp_path / "payloads" / "0123.part").write_bytes(b"half")
    async with opened(tmp_path) as store:
        assert payloads(tmp_path) == {file.payload}


async def test_a_store_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "jobs.sqlite3", isolation_level=None)
    old.executescript(f"PRAGMA journal_mode = WAL; {schema._JOBS} PRAGMA user_version = 1;")
    old.execute(
        "INSERT INTO jobs (id, owner, model, version, state, queued, created, deadline, bytes, metadata) "
        "VALUES ('job_1', 'ann', 'm', -1, 'queued', 1, ?, ?, 1, '{}')",
        (NOW, NOW + 10),
    )
    old.execute(
        "INSERT INTO items (job, place, model, state, not_before, custom_id, form, request, request_bytes) "
        "VALUES (1, 0, 'm', 'queued', ?, '', x'', x'00', 1)",
        (NOW,),
    )
    old.close()
    async with opened(tmp_path, LIMITS) as store:
        (claim,) = await store.claim({}, 1, NOW)
        assert (claim.job_id, claim.kind) == ("job_1", "")
        await kept(store, b"x")
