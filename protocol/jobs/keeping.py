"""What a server keeps jobs and batches with, as its edges see it: it comes once the models are loaded, when the edges
are open already."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import Unavailable
from protocol.jobs.batches.service import Batches
from protocol.jobs.service import Jobs


@dataclass(slots=True)
class JobKeeping:
    """`jobs` is there if the server keeps jobs, and `batches` if it keeps files and batches, too; `is_awaited`
    until that is known."""

    jobs: Jobs | None = None
    batches: Batches | None = None
    is_awaited: bool = False

    def check(self) -> None:
        """Raises Unavailable while it is awaited."""
        if self.is_awaited:
            raise Unavailable("Server not ready: jobs are taken once the models are loaded")
