"""Flags of jobs. Part of `trioton.settings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.jobs.data.places import parse_place
from protocol.errors import InvalidArgument
from protocol.jobs.store import Limits
from repository.stores.urls import StoreUrl
from trioton.flags.fields import INTEGER, flag, integer, repeatable

JOBS = "Jobs"


def _store_place(text: str) -> str:
    """An empty text would be the working directory, which nobody means."""
    if not text or "\0" in text:
        raise ValueError("expected a folder, or <store>://<place>")
    return text


def _url_prefix(text: str) -> str:
    """Raises ValueError."""
    try:
        place = parse_place(text)
    except InvalidArgument as error:
        raise ValueError(error.message) from None
    if "*" in text or (isinstance(place, Path) and not place.is_absolute()):
        raise ValueError("expected an absolute path, or a place in an object store, without '*'")
    return text


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class JobFlags:
    """The part of the settings that is about jobs."""

    jobs_store: str | None = flag(
        None,
        _store_place,
        group=JOBS,
        metavar="<folder>",
        help="Take jobs, and keep them in this folder on a local disk; or for several servers in Redis, "
        "redis://<host>:<port>, over TLS rediss://<host>:<port>; or in a store of an installed package, "
        "<store>://<place>. Without it there are none.",
    )
    jobs_max_bytes: int = flag(
        10 << 30,
        integer(0),
        group=JOBS,
        metavar=INTEGER,
        help="The most bytes that requests and results of all jobs have. Above it the oldest that have ended are "
        "forgotten, and if there are none, new jobs are refused.",
    )
    jobs_keep_secs: int = flag(
        86_400,
        integer(0),
        group=JOBS,
        metavar=INTEGER,
        help="How many seconds a job, its result and its idempotency key are kept after its end.",
    )
    jobs_max_secs: int = flag(
        86_400,
        integer(1),
        group=JOBS,
        metavar=INTEGER,
        help="How many seconds a job may take before it expires, and the most that a client may ask for.",
    )
    jobs_max_in_flight: int = flag(
        64, integer(1), group=JOBS, metavar=INTEGER, help="The most requests of jobs that one model runs at a time."
    )
    jobs_max_interruptions: int = flag(
        5,
        integer(1),
        group=JOBS,
        metavar=INTEGER,
        help="A request of a job has failed when the server has crashed so many times while it ran.",
    )

    jobs_max_file_bytes: int = flag(
        200 << 20,
        integer(1),
        group=JOBS,
        metavar=INTEGER,
        help="The most bytes of a file with requests that clients upload for a batch.",
    )
    jobs_keep_files_secs: int = flag(
        30 * 86_400,
        integer(1),
        group=JOBS,
        metavar=INTEGER,
        help="How many seconds a file of a batch is kept, where its client does not say, and a batch after its end.",
    )

    jobs_allow_url: tuple[str, ...] = repeatable(
        _url_prefix,
        group=JOBS,
        metavar="<prefix>",
        help="Jobs may read their rows and write their results below this: a folder, or a place in an object store "
        "(s3://bucket/path, gs://bucket/path, as://account/container/path). May be given several times; without it "
        "nowhere.",
    )

    def job_places(self) -> Sequence[Path | StoreUrl]:
        """Below which jobs may read and write."""
        return [parse_place(each) for each in self.jobs_allow_url]

    def job_limits(self) -> Limits:
        """What the store holds."""
        return Limits(
            byte_size=self.jobs_max_bytes,
            keep_seconds=self.jobs_keep_secs,
            max_interruptions=self.jobs_max_interruptions,
        )
