"""The interface between the edges and the batches of a server (`Batches`). `actors.jobs.batches` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from protocol.jobs.batches.batch import Batch
from protocol.jobs.batches.files import StoredFile
from protocol.jobs.batches.store import FileWriter
from protocol.jobs.webhook import Webhook


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that is to be made. `output_seconds` is how long its files are kept; 0 for as long as others. `key` and
    `fingerprint` are as those of `protocol.jobs.store.NewJob`."""

    owner: str
    endpoint: str
    input_file: StoredFile
    metadata: Mapping[str, str] = field(default_factory=dict)
    output_seconds: float = 0.0
    key: str = ""
    fingerprint: bytes = b""
    webhook: Webhook | None = None


class Batches(Protocol):
    """The batches and files of one server. To everybody but their owner they do not exist: then NotFound is raised.

    Attributes:
        keep_seconds: how long a file is kept, where its owner does not say.
    """

    keep_seconds: float

    def now(self) -> float:
        """In seconds since the epoch."""
        ...

    async def file_writer(self) -> FileWriter:
        """For an upload. Raises InsufficientStorage."""
        ...

    async def keep_file(self, file: StoredFile, writer: FileWriter) -> None:
        """As `BatchStore.keep_file`."""

    async def find_file(self, owner: str, file_id: str) -> StoredFile: ...

    async def files(
        self, owner: str, purpose: str, after: str, limit: int, *, ascending: bool = False
    ) -> Sequence[StoredFile]:
        """As `BatchStore.files`."""
        ...

    async def remove_file(self, owner: str, file_id: str) -> None:
        """Raises InvalidArgument: a batch that has not ended reads it."""

    async def read_file(self, payload: str, start: int, size: int) -> bytes:
        """As `BatchStore.read_file`."""
        ...

    async def create(self, new: NewBatch) -> Batch:
        """It begins at once. With an idempotency key that its owner has used before the batch of then is returned.

        Raises:
            Overloaded: too many have not ended, or it has a webhook and too many deliveries of its owner have not been
                taken.
            InsufficientStorage: there is no room for it.
            IdempotencyMismatch: the key was used for another batch.
            InvalidArgument, Unsupported: its webhook cannot be told.
        """
        ...

    async def find(self, owner: str, batch_id: str) -> Batch: ...

    async def batches(self, owner: str, after: str, limit: int) -> Sequence[Batch]:
        """As `BatchStore.batches`."""
        ...

    async def cancel(self, owner: str, batch_id: str) -> Batch:
        """What runs of it is given up at once."""
        ...
