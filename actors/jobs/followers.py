"""Followers of jobs: clients that are told what happens to a job while it happens. Nothing is kept for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from protocol.messages import InferenceResponse
from protocol.sync.wakeup import Wakeup

# Of the parts of results that a follower has not taken.
MAX_PARTIALS = 256
MAX_PARTIAL_BYTES = 4 << 20


class JobFollower(Wakeup):
    """Implements `protocol.jobs.service.Follower`."""

    __slots__ = ("_has_changed", "_partials", "_size", "is_over")

    def __init__(self) -> None:
        self._waiting = None
        self.is_over = False
        self._has_changed = False
        self._partials: deque[tuple[int, InferenceResponse]] = deque()
        self._size = 0

    async def changed(self) -> None:
        while not (self._has_changed or self.is_over):
            await self.wait()
        self._has_changed = False

    def partials(self) -> Sequence[tuple[int, InferenceResponse]]:
        taken = list(self._partials)
        self._partials.clear()
        self._size = 0
        return taken

    def end(self) -> None:
        self.is_over = True
        self.wake()

    def tell(self) -> None:
        self._has_changed = True
        self.wake()

    def tell_partial(self, index: int, response: InferenceResponse) -> None:
        self._partials.append((index, response))
        self._size += _size(response)
        while len(self._partials) > MAX_PARTIALS or self._size > MAX_PARTIAL_BYTES:
            self._size -= _size(self._partials.popleft()[1])
        self.tell()


class Followers:
    """Those of all jobs of a server."""

    def __init__(self) -> None:
        self._by_job: dict[str, set[JobFollower]] = {}
        self._are_over = False

    @contextmanager
    def follow(self, job_id: str) -> Iterator[JobFollower]:
        follower = JobFollower()
        follower.is_over = self._are_over
        self._by_job.setdefault(job_id, set()).add(follower)
        try:
            yield follower
        finally:
            followers = self._by_job[job_id]
            followers.remove(follower)
            if not followers:
                del self._by_job[job_id]

    def tell(self, job_id: str) -> None:
        """Something has happened to the job."""
        for follower in self._by_job.get(job_id, ()):
            follower.tell()

    def tell_all(self) -> None:
        """Something may have happened to any job."""
        for followers in self._by_job.values():
            for follower in followers:
                follower.tell()

    def tell_partial(self, job_id: str, index: int, response: InferenceResponse) -> None:
        for follower in self._by_job.get(job_id, ()):
            follower.tell_partial(index, response)

    def end(self) -> None:
        """The server stops: nothing more is told."""
        self._are_over = True
        for followers in self._by_job.values():
            for follower in followers:
                follower.end()

    def __len__(self) -> int:
        return sum(map(len, self._by_job.values()))


def _size(response: InferenceResponse) -> int:
    return sum(tensor.byte_size for tensor in response.outputs)
