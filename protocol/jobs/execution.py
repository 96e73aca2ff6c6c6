"""The interface between the runner of jobs and what runs one item: the core's models, or another interface's requests.

An executor knows what the bytes of a request and of a result mean; neither the runner nor the store does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from protocol.errors import ServerError
from protocol.messages import Buffer, InferenceResponse

Partial: TypeAlias = Callable[[InferenceResponse], None]
"""Takes a part of a result as soon as it is there, for who follows the job."""


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """How busy a model is: the requests that it has, those of jobs included, and how many it runs at the same time, on
    all of its instances; 0 where that is not known."""

    in_flight: int
    capacity: int
    instances: int = 1


class FailedItem(Exception):
    """An item has failed, and there is more to be kept of it than its error: `result`, encoded, in parts."""

    def __init__(self, error: ServerError, result: Sequence[Buffer]) -> None:
        super().__init__(error.message)
        self.error = error
        self.result = result


class JobExecutor(Protocol):
    async def run(self, owner: str, request: Buffer, partial: Partial) -> Sequence[Buffer]:
        """The encoded result, in parts; what it costs is charged to the owner. Cancelled, the request is given
        up.

        Raises:
            Unavailable: not now; it will be tried again.
            ServerError, FailedItem: the item has failed.
        """
        ...

    def load_of(self, model: str) -> ModelLoad:
        """Never raises; nothing is known of a model that is not there."""
        ...
