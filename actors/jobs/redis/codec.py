"""What the job store has in Redis, as the records of `protocol.jobs`, and back. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from actors.jobs.redis.script import Argument
from protocol.jobs.batches.files import StoredFile
from protocol.jobs.job import Counts, ItemError, Job
from protocol.jobs.source import JobSource, Position, Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import Claim, Item, JobFilter, NewItem, NewJob, StoreFigures
from protocol.jobs.webhook import Delivery, DeliveryRoom

_read_position = msgspec.json.Decoder(Position).decode


class _Names(msgspec.Struct, array_like=True):
    """What of an item nobody but its owner asks for. In bytes, since texts of JSON may have half a character."""

    custom_id: bytes
    form: bytes


_read_names = msgspec.msgpack.Decoder(_Names).decode
_read_record = msgspec.msgpack.Decoder(list).decode


def text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def error_text(error: ItemError | None) -> str:
    return "" if error is None else json.dumps([error.kind, error.message])


def _error(value: bytes | str) -> ItemError | None:
    return ItemError(*json.loads(value)) if value else None


def read_job(fields: Sequence[bytes | str]) -> Job:
    """In the order of `JOB_FIELDS` of the script."""
    id, owner, model, version, state, *rest = map(text, fields)
    created, deadline, started, ended, byte_size, metadata, error, kind, source, written = rest[6:]
    return Job(
        id=id,
        owner=owner,
        model=model,
        version=int(version),
        state=JobState(state),
        counts=Counts(*map(int, rest[:6])),
        created=float(created),
        deadline=float(deadline),
        started=float(started),
        ended=float(ended),
        byte_size=int(byte_size),
        metadata=json.loads(metadata),
        error=_error(error),
        kind=kind,
        source=JobSource.decode(source) if source else None,
        written=int(written),
    )


def new_job(job: NewJob, now: float) -> list[Argument]:
    """The job itself, as `add` takes it."""
    webhook = job.webhook
    return [
        job.id,
        job.owner,
        job.model,
        job.version,
        repr(now),
        repr(job.deadline),
        json.dumps(dict(job.metadata)),
        job.key,
        job.fingerprint,
        job.kind,
        b"" if job.source is None else job.source.encode(),
        *(("", "", "") if webhook is None else (webhook.url, webhook.host, state_list(webhook.states))),
    ]


def state_list(states: frozenset[JobState]) -> str:
    """For the script, which looks for a state between commas; empty for none."""
    return f",{','.join(sorted(states))}," if states else ""


def new_items(items: Sequence[NewItem]) -> list[Argument]:
    """Five values of each."""
    found: list[Argument] = []
    for item in items:
        names = _Names(item.custom_id.encode("utf-8", "surrogatepass"), item.form)
        request = b"".join(item.request)
        found += (item.model, msgspec.msgpack.encode(names), request, int(item.error is None), error_text(item.error))
    return found


def read_item(row: Sequence[Any]) -> Item:
    index, packed, names, result = row
    record = _read_record(packed)
    named = _read_names(names)
    return Item(
        index=int(index),
        custom_id=named.custom_id.decode("utf-8", "surrogatepass"),
        model=record[10],
        state=JobState(record[0]),
        attempt=int(record[2]),
        form=named.form,
        result=result,
        error=_error(record[7]),
    )


def job_fields(job: Job) -> bytes:
    """As the script has a job beside a delivery; read by `read_job`."""
    counts = job.counts
    numbers = (counts.queued, counts.running, counts.succeeded, counts.failed, counts.cancelled, counts.expired)
    times = (job.created, job.deadline, job.started, job.ended)
    fields = [
        *(job.id, job.owner, job.model, str(job.version), job.state.value),
        *map(str, numbers),
        *map(repr, times),
        *(str(job.byte_size), json.dumps(dict(job.metadata)), error_text(job.error), job.kind, "", str(job.written)),
    ]
    return msgspec.msgpack.encode(fields)


def read_file(fields: Sequence[bytes]) -> StoredFile:
    id, owner, purpose, name, payload, size, created, expires = map(text, fields)
    return StoredFile(id, owner, purpose, name, payload, int(size), float(created), float(expires))


def file_values(file: StoredFile) -> list[Argument]:
    """As the script keeps it."""
    return [
        *(file.id, file.owner, file.purpose, file.name, file.payload),
        *(file.byte_size, repr(file.created), repr(file.expires)),
    ]


# `Claim.place` of a request that is to be fetched.
FETCHED = "redis"


def read_claim(row: Sequence[Any]) -> Claim:
    id, owner, index, claim, attempt, model, deadline, size, request, is_inline, kind = row
    return Claim(
        job_id=text(id),
        owner=text(owner),
        index=int(index),
        claim=int(claim),
        attempt=int(attempt),
        model=text(model),
        deadline=float(deadline),
        byte_size=int(size),
        request=request,
        place="" if is_inline else FETCHED,
        kind=text(kind),
    )


def filter_texts(which: JobFilter) -> tuple[str, str, str]:
    return which.kind, state_list(which.states), which.model


def read_figures(answer: Sequence[Any]) -> StoreFigures:
    pairs, oldest, byte_size = answer
    counts = {text(state): int(count) for state, count in zip(pairs[::2], pairs[1::2], strict=True)}
    return StoreFigures({state: counts.get(state, 0) for state in JobState}, float(oldest), int(byte_size))


def progress_texts(progress: Progress) -> list[Argument]:
    position = msgspec.json.encode(progress.position)
    return [position, progress.position.row, int(progress.is_read), progress.written]


def read_progress(fields: Sequence[bytes]) -> Progress:
    position, is_read, written = fields
    return Progress(_read_position(position) if position else Position(), is_read == b"1", int(written))


def delivery_room(room: DeliveryRoom) -> list[Argument]:
    def pairs(counts: Mapping[str, int]) -> list[Argument]:
        return [each for pair in counts.items() for each in pair]

    return [room.total, room.per_host, room.per_owner, len(room.hosts), *pairs(room.hosts), *pairs(room.owners)]


def read_delivery(row: Sequence[Any]) -> Delivery:
    id, owner, url, host, state, job, created, attempt = row
    return Delivery(
        id=text(id),
        owner=text(owner),
        url=text(url),
        host=text(host),
        state=JobState(text(state)),
        job=read_job(_read_record(job)),
        created=float(created),
        attempt=int(attempt),
    )
