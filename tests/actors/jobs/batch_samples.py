"""Files and batches as they stand in a job store, for tests of stores."""

from __future__ import annotations

from dataclasses import replace

from actors.jobs.batches.batches import FullStore
from protocol.jobs.batches.batch import Batch, BatchState, new_batch_id
from protocol.jobs.batches.files import INPUT, OUTPUT, StoredFile, new_file_id

NOW = 1_800_000_000.0
LATER = NOW + 1000


async def kept(
    store: FullStore, content: bytes, *, owner: str = "ann", purpose: str = INPUT, created: float = NOW
) -> StoredFile:
    writer = await store.file_writer()
    try:
        await writer.write(content)
        await writer.finish()
        file = StoredFile(
            new_file_id(created), owner, purpose, "in.jsonl", writer.payload, writer.size, created, created + 100
        )
        await store.keep_file(file, writer)
    finally:
        await writer.close()
    return file


def batch_of(file: StoredFile, now: float = NOW) -> Batch:
    return Batch(new_batch_id(now), file.owner, "/v1/completions", file.id, file.payload, now, now + 86400)


async def finished(store: FullStore, batch: Batch, output: bytes) -> Batch:
    """One whose job has run, with its output."""
    writer = await store.file_writer(is_result=True)
    try:
        await writer.write(output)
        await writer.finish()
        file = StoredFile(
            new_file_id(NOW), batch.owner, OUTPUT, "out.jsonl", writer.payload, len(output), NOW + 1, LATER
        )

        def end(found: Batch) -> Batch:
            moved = found.moved(BatchState.IN_PROGRESS, NOW).moved(BatchState.FINALIZING, NOW)
            return replace(moved.moved(BatchState.COMPLETED, NOW), output_file=file.id)

        changed = await store.change_batch(batch.id, end, [(file, writer)], LATER)
    finally:
        await writer.close()
    assert changed is not None
    return changed
