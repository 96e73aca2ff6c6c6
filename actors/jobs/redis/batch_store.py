"""The part of the Redis job store that keeps batches and their files."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import trio

from actors.jobs.redis import codec
from actors.jobs.redis.script import Argument
from protocol.errors import InsufficientStorage, InvalidArgument, NotFound, Overloaded, ServerError
from protocol.jobs.batches.batch import Batch
from protocol.jobs.batches.files import StoredFile
from protocol.jobs.batches.store import Change, FileWriter
from protocol.jobs.store import IdempotencyMismatch, Limits
from protocol.messages import Buffer

# Of one owner: with more deliveries that nobody takes, no more webhooks are asked for.
MOST_DELIVERIES = 10_000
# Bytes of one file: no text in Redis is larger.
LARGEST_FILE = 512 << 20
# How often a batch is changed anew since another server has changed it meanwhile.
_MOST_TRIES = 100

_read_batch = msgspec.msgpack.Decoder(Batch).decode


def too_many_deliveries(owner: str) -> Overloaded:
    return Overloaded(
        f"{MOST_DELIVERIES} webhooks of jobs of '{owner}' have not been taken by their receivers yet: make jobs "
        f"without one, or see to the receivers"
    )


class RedisBatches:
    """Implements `protocol.jobs.batches.store.BatchStore`; the store, which it is a part of, has the rest."""

    _limits: Limits

    async def _again(self, name: str, *arguments: Argument) -> Any:
        raise NotImplementedError

    async def _apart(self, name: str, *arguments: Argument) -> Any:
        raise NotImplementedError

    async def _apart_once(self, name: str, *arguments: Argument) -> Any:
        raise NotImplementedError

    async def _with_room(self, name: str, size: int, what: str, arguments: Sequence[Argument]) -> Sequence[Any]:
        raise NotImplementedError

    async def file_writer(self, *, is_result: bool = False) -> FileWriter:
        await trio.lowlevel.checkpoint()
        return RedisWriter(self, is_result=is_result)

    async def append(self, payload: str, data: Buffer, *, is_result: bool) -> None:
        """Raises InsufficientStorage. If it fails, what there is of the payload is not known."""
        while True:
            what, *held = await self._apart_once("append", payload, bytes(data), self._limits.byte_size, int(is_result))
            if what == b"full":
                raise InsufficientStorage(
                    f"the file has {len(data)} bytes more and the jobs and files that are kept hold {int(held[0])} of "
                    f"{self._limits.byte_size}. Use --jobs-max-bytes to keep more."
                )
            if what != b"more":
                return

    async def discard(self, payload: str) -> None:
        await self._again("discard", payload)

    async def keep_file(self, file: StoredFile, writer: FileWriter) -> None:
        assert isinstance(writer, RedisWriter)
        arguments = [self._limits.byte_size, *codec.file_values(file)]
        await self._with_room("keep_file", file.byte_size, "the file", arguments)
        writer.is_kept = True

    async def find_file(self, owner: str, file_id: str) -> StoredFile | None:
        found = await self._again("find_file", file_id, owner)
        return None if found is None else codec.read_file(found)

    async def files(
        self, owner: str, purpose: str, after: str, limit: int, *, ascending: bool = False
    ) -> Sequence[StoredFile]:
        found: list[StoredFile] = []
        while len(found) < limit:
            last, rows = await self._again("files", owner, purpose, after, limit - len(found), int(ascending))
            found += map(codec.read_file, rows)
            after = codec.text(last)
            if not after:
                break
        return found

    async def remove_file(self, owner: str, file_id: str) -> bool:
        what, *reader = await self._again("remove_file", file_id, owner)
        if what == b"read":
            raise InvalidArgument(
                f"file '{file_id}' is the input of batch '{codec.text(reader[0])}', which has not ended: cancel it "
                f"first"
            )
        return bool(what == b"removed")

    async def read_file(self, payload: str, start: int, size: int) -> bytes:
        call = self._again if size <= 64 << 10 else self._apart
        found: bytes | None = await call("read_file", payload, start, size)
        if found is None:
            raise NotFound("the file has been removed")
        return found

    async def add_batch(self, batch: Batch, key: str = "", fingerprint: bytes = b"") -> tuple[Batch, bool]:
        record = msgspec.msgpack.encode(batch)
        head: list[Argument] = [batch.id, batch.owner, batch.input_file, record, key, fingerprint]
        tail = [int(batch.webhook is not None), self._limits.byte_size, MOST_DELIVERIES]
        what, *rest = await self._with_room("add_batch", len(record), "the batch", [*head, *tail])
        if what == b"gone":
            raise NotFound(f"No such File object: {batch.input_file}")
        if what == b"mismatch":
            raise IdempotencyMismatch(
                f"Idempotency-Key '{key[:64]}' was used for another batch; it may come again with the same request"
            )
        if what == b"deliveries":
            raise too_many_deliveries(batch.owner)
        return _read_batch(rest[0]), what == b"made"

    async def find_batch(self, owner: str, batch_id: str) -> Batch | None:
        found = await self._again("find_batch", batch_id, owner, 1)
        return None if found is None else _read_batch(found)

    async def batches(self, owner: str, after: str, limit: int) -> Sequence[Batch]:
        return [_read_batch(record) for record in await self._again("batches", owner, after, limit)]

    async def unended_batches(self) -> Sequence[Batch]:
        return [_read_batch(record) for record in await self._again("unended_batches")]

    async def change_batch(
        self,
        batch_id: str,
        change: Change,
        files: Sequence[tuple[StoredFile, FileWriter]] = (),
        kept_until: float = 0,
    ) -> Batch | None:
        values = [value for file, _ in files for value in codec.file_values(file)]
        for _ in range(_MOST_TRIES):
            old = await self._again("find_batch", batch_id, "", 0)
            if old is None:
                return None
            batch = _read_batch(old)
            if batch.ended:
                return batch
            batch = change(batch)
            new = msgspec.msgpack.encode(batch)
            with trio.CancelScope(shield=True):  # whether the files are kept must be known
                what, *_ = await self._again(
                    "change_batch", batch_id, old, new, repr(batch.ended or 0), repr(kept_until), *_told(batch), *values
                )
                if what == b"changed":
                    for _file, writer in files:
                        assert isinstance(writer, RedisWriter)
                        writer.is_kept = True
                    return batch
        raise ServerError(f"batch '{batch_id}' is changed by others all the time")


def _told(batch: Batch) -> Sequence[Argument]:
    """The delivery of its end: state, URL, host and job; empty where there is none."""
    if not batch.ended or batch.webhook is None or (job := batch.as_ended_job()).state not in batch.webhook.states:
        return "", "", "", ""
    return job.state, batch.webhook.url, batch.webhook.host, codec.job_fields(job)


class RedisWriter:
    """Implements `protocol.jobs.batches.store.FileWriter`."""

    def __init__(self, store: RedisBatches, *, is_result: bool) -> None:
        self.payload = secrets.token_hex(16)
        self.size = 0
        self.is_kept = False
        self._store = store
        self._is_result = is_result
        self._has_begun = False

    async def write(self, data: Buffer) -> None:
        if self.size + len(data) > LARGEST_FILE:
            raise InsufficientStorage(f"a job store in Redis keeps files of at most {LARGEST_FILE} bytes")
        self._has_begun = True
        await self._store.append(self.payload, data, is_result=self._is_result)
        self.size += len(data)

    async def finish(self) -> None:
        if not self._has_begun:
            await self.write(b"")

    async def close(self) -> None:
        if self._has_begun and not self.is_kept:
            with trio.CancelScope(shield=True), suppress(ServerError):  # else it is dropped when this server ends
                await self._store.discard(self.payload)
        self._has_begun = False
