"""Public: jobs of a server in this process: made, awaited, followed and cancelled without HTTP, and their results.

    from trioton.messages import InferenceRequest
    from trioton.server import Settings, open_server

    settings = Settings(model_repository=(Path("models"),), jobs_store="/var/lib/jobs", jobs_allow_url=("/data",))
    async with open_server(settings) as server:
        job = await server.jobs.submit([InferenceRequest("my_model", [tensor]) for tensor in tensors])
        job = await server.jobs.wait(job.id)
        async for result in server.jobs.results(job.id):
            print(result.index, result.state, result.responses)
        job = await server.jobs.submit_files("my_model", "/data/in/*.jsonl", "/data/out")
        with server.jobs.events(job.id) as events:
            async for event in events:
                print(event.job.counts)

Jobs outlive the program: one that has made them finds them again by their ids after its next start.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from protocol.errors import Forbidden, InsufficientStorage, InvalidArgument, Unavailable
from protocol.http.codec.jobs import MAX_ITEMS
from protocol.jobs.job import Counts, ItemError, Job, check_custom_id, new_job_id
from protocol.jobs.payload import decode_responses, encode_request
from protocol.jobs.result_form import ResultForm
from protocol.jobs.service import Follower
from protocol.jobs.service import Jobs as JobService
from protocol.jobs.source import DataFormat, DataPlace, JobSource, format_of
from protocol.jobs.states import JobState
from protocol.jobs.store import JobFilter, NewItem, NewJob
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse

__all__ = [
    "Counts",
    "DataFormat",
    "DataPlace",
    "Forbidden",
    "InsufficientStorage",
    "ItemError",
    "Job",
    "JobEvent",
    "JobEvents",
    "JobResult",
    "JobSource",
    "JobState",
    "Jobs",
]

_PAGE = 256


@dataclass(frozen=True, slots=True)
class JobResult:
    """What has become of one request of a job.

    Attributes:
        index: its place among the requests, from 0.
        custom_id: the name that it was given.
        state: what it is in; responses are there if it has succeeded.
        responses: one, or of a decoupled model any number.
        error: why it has failed; None where it has not.
    """

    index: int
    custom_id: str
    state: JobState
    responses: Sequence[InferenceResponse]
    error: ItemError | None


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A job as it is now, and what has come meanwhile of its results: responses of decoupled models as they come, each
    with the index of its request. They are in `Jobs.results` too."""

    job: Job
    partials: Sequence[tuple[int, InferenceResponse]]


class _Models(Protocol):
    def is_decoupled(self, name: str, version: int) -> bool: ...


class Jobs:
    """The jobs of a server, called on its Trio loop by any number of tasks. Methods raise `ServerError` and its
    subclasses (`trioton.errors`): NotFound for a job that is not there. A call ends with its cancel scope; the job goes
    on.

    Made by the server. Its jobs are those of HTTP clients without a key, and these see them.
    """

    def __init__(self, jobs: JobService, models: _Models, owner: str) -> None:
        self._jobs = jobs
        self._models = models
        self._owner = owner

    async def submit(
        self,
        requests: Sequence[InferenceRequest],
        *,
        custom_ids: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
        seconds: float | None = None,
        key: str = "",
    ) -> Job:
        """Make a job of requests, whose tensors are in memory. When it returns, they are on the disk.

        Args:
            custom_ids: names of the requests, as many as there are, or none.
            seconds: until the job expires, at most `--jobs-max-secs`.
            key: makes the call idempotent: the same key with the same requests gives the job that was made then.

        Raises:
            NotFound: there is no such model.
            InvalidArgument: a job cannot take a request, or not so many.
            InsufficientStorage: there is no room for it.
        """
        if not 0 < len(requests) <= MAX_ITEMS or len(custom_ids) not in (0, len(requests)):
            raise InvalidArgument(
                f"expected 1 to {MAX_ITEMS} requests and as many custom_ids or none, got {len(requests)} and "
                f"{len(custom_ids)}"
            )
        # Many take longer than the loop may be held.
        items = await trio.to_thread.run_sync(_items, requests, custom_ids or [""] * len(requests))
        for model, version in {(request.model_name, request.model_version) for request in requests}:
            self._check_model(model, version)
        models = {item.model for item in items}
        fingerprint = await trio.to_thread.run_sync(_fingerprint, items) if key else b""
        return await self._add(
            NewJob(
                new_job_id(self._jobs.now()),
                self._owner,
                items,
                self._deadline(seconds),
                models.pop() if len(models) == 1 else "",
                metadata=metadata or {},
                key=key,
                fingerprint=fingerprint,
            )
        )

    async def submit_files(
        self,
        model: str,
        input: str,
        output: str,
        *,
        version: int = LATEST_VERSION,
        input_format: DataFormat | None = None,
        output_format: DataFormat = DataFormat.JSON_LINES,
        metadata: Mapping[str, str] | None = None,
        seconds: float | None = None,
        key: str = "",
    ) -> Job:
        """Make a job of the rows of files: `input` and `output` are URLs as `POST /v2/jobs` takes them, below a
        `--jobs-allow-url`.

        Args:
            input_format: where it is absent, the name of the input says it.

        Raises:
            NotFound: there is no such model.
            Forbidden: a place is not allowed.
            InvalidArgument: a place is none.
        """
        read = input_format or format_of(input)
        if read is None:
            raise InvalidArgument(f"input '{input}': expected an input_format, as its name says none")
        self._check_model(model, version)
        source = JobSource(model, DataPlace(input, read), DataPlace(output, output_format), version)
        return await self._add(
            NewJob(
                new_job_id(self._jobs.now()),
                self._owner,
                (),
                self._deadline(seconds),
                model,
                version,
                metadata or {},
                key,
                hashlib.sha256(source.encode()).digest() if key else b"",
                source=source,
            )
        )

    async def find(self, job_id: str) -> Job:
        """A job as it is."""
        return await self._jobs.find(self._owner, job_id)

    async def list(
        self, *, states: frozenset[JobState] = frozenset(), model: str = "", after: str = "", limit: int = 20
    ) -> Sequence[Job]:
        """Jobs, the newest first: those in one of these states, or in any, of this model, or of any, that come after
        the job `after`."""
        return await self._jobs.jobs(self._owner, JobFilter(states, model), after, limit)

    async def wait(self, job_id: str, seconds: float = math.inf) -> Job:
        """The job when it has ended, or as it is after so many seconds, or when the server stops."""
        return await self._jobs.wait(self._owner, job_id, seconds)

    @contextmanager
    def events(self, job_id: str) -> Iterator[JobEvents]:
        """Follow a job: within the block the events can be iterated, as long as it runs."""
        with self._jobs.follow(job_id) as follower:
            yield JobEvents(self, job_id, follower)

    async def results(self, job_id: str) -> AsyncIterator[JobResult]:
        """What has become of its requests, in their order; they are read as they are taken.

        Raises:
            InvalidArgument: they are in files.
        """
        job = await self.find(job_id)
        if job.source is not None:
            raise InvalidArgument(f"the results of job '{job_id}' are in {job.source.output.url}")
        index = 0
        while items := await self._jobs.items(job_id, index, _PAGE, results=True):
            for item in items:
                responses = () if item.result is None else decode_responses(item.result)
                yield JobResult(item.index, item.custom_id, item.state, responses, item.error)
            index = items[-1].index + 1

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job; what runs of it is given up. One that has ended stays as it is."""
        return await self._jobs.cancel(self._owner, job_id)

    async def remove(self, job_id: str) -> None:
        """Forget a job; one that has not ended is cancelled first."""
        await self._jobs.remove(self._owner, job_id)

    async def _add(self, new: NewJob) -> Job:
        with self._jobs.answering(self._owner, new.key):
            try:
                job, _ = await self._jobs.add(new)
            except UnicodeEncodeError as error:
                raise InvalidArgument(f"{error.object!a:.60} has half of a surrogate pair") from None
        return job

    def _deadline(self, seconds: float | None) -> float:
        longest = self._jobs.max_seconds
        return self._jobs.now() + (longest if seconds is None else min(seconds, longest))

    def _check_model(self, name: str, version: int) -> None:
        """One that is not ready now may be when the job runs. Raises NotFound."""
        with suppress(Unavailable):
            self._models.is_decoupled(name, version)


class JobEvents:
    """An asynchronous iterator of a job's events: the first at once, then as it changes, the last when it has ended.
    What happens while an event is looked at is in the next one. It ends when the server stops, too."""

    def __init__(self, jobs: Jobs, job_id: str, follower: Follower) -> None:
        self._jobs = jobs
        self._job_id = job_id
        self._follower = follower
        self._job: Job | None = None

    def __aiter__(self) -> JobEvents:
        return self

    async def __anext__(self) -> JobEvent:
        while self._job is None or not (self._job.state.is_ended or self._follower.is_over):
            if self._job is not None:
                await self._follower.changed()
            partials = self._follower.partials()
            before, self._job = self._job, await self._jobs.find(self._job_id)
            if partials or self._job != before:
                return JobEvent(self._job, partials)
        raise StopAsyncIteration


def _items(requests: Sequence[InferenceRequest], names: Sequence[str]) -> Sequence[NewItem]:
    """Raises InvalidArgument."""
    form = ResultForm(is_list=True).encode()
    items = []
    for request, name in zip(requests, names, strict=True):
        if request.sequence_id:
            raise InvalidArgument(
                f"a job takes no part in a sequence, whose requests run in order: model '{request.model_name}', "
                f"sequence_id {request.sequence_id!r:.40}"
            )
        if request.has_device_inputs:
            raise InvalidArgument(f"a job takes no tensors on devices: model '{request.model_name}'")
        check_custom_id(name)
        try:
            kept = encode_request(request)
        except UnicodeEncodeError:
            raise InvalidArgument(
                f"a request to model '{request.model_name}' has a text with half of a surrogate pair"
            ) from None
        items.append(NewItem(request.model_name, kept, name, form))
    return items


def _fingerprint(items: Sequence[NewItem]) -> bytes:
    digest = hashlib.sha256()
    for item in items:
        digest.update(f"{item.custom_id}\0".encode("utf-8", "surrogatepass"))
        for part in item.request:
            digest.update(part)
    return digest.digest()
