"""The interface of job stores that keep batches and their files, too. `actors.jobs.sqlite` is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from protocol.jobs.batches.batch import Batch
from protocol.jobs.batches.files import StoredFile
from protocol.messages import Buffer

# Pure: it may be called more than once.
Change: TypeAlias = Callable[[Batch], Batch]


class FileWriter(Protocol):
    """Writes the content of one file, which is kept once a `StoredFile` names it. To be closed in any case.

    Attributes:
        payload: by which the store reads it; to be put into its `StoredFile`.
        size: bytes that were written.
    """

    payload: str
    size: int

    async def write(self, data: Buffer) -> None:
        """Raises InsufficientStorage."""

    async def finish(self) -> None:
        """All was written: have it on the disk. Raises InsufficientStorage."""

    async def close(self) -> None:
        """Remove what was written, unless it is kept."""


@runtime_checkable
class BatchStore(Protocol):
    """What a `protocol.jobs.store.JobStore` has beside for batches. What a call has done outlives a crash."""

    async def file_writer(self, *, is_result: bool = False) -> FileWriter:
        """A result is not refused for the bytes that all together may have. Raises InsufficientStorage."""
        ...

    async def keep_file(self, file: StoredFile, writer: FileWriter) -> None:
        """Keep what was written. Raises InsufficientStorage."""

    async def find_file(self, owner: str, file_id: str) -> StoredFile | None: ...

    async def files(
        self, owner: str, purpose: str, after: str, limit: int, *, ascending: bool = False
    ) -> Sequence[StoredFile]:
        """The newest first unless `ascending`, those that come after the file `after`; of any purpose where that is
        empty."""
        ...

    async def remove_file(self, owner: str, file_id: str) -> bool:
        """Returns whether there was one.

        Raises:
            InvalidArgument: a batch that has not ended reads it.
        """
        ...

    async def read_file(self, payload: str, start: int, size: int) -> bytes:
        """A piece of its content, shorter at its end. Raises NotFound where it is gone."""
        ...

    async def add_batch(self, batch: Batch, key: str = "", fingerprint: bytes = b"") -> tuple[Batch, bool]:
        """Keep a batch; returns whether it was made. With an idempotency key that its owner has used before the batch
        of then is returned, as long as it is kept.

        Raises:
            NotFound: its input is gone.
            InsufficientStorage: there is no room for it.
            IdempotencyMismatch: the key was used with another fingerprint.
            Overloaded: it has a webhook, and too many deliveries of its owner have not been taken.
        """
        ...

    async def find_batch(self, owner: str, batch_id: str) -> Batch | None: ...

    async def batches(self, owner: str, after: str, limit: int) -> Sequence[Batch]:
        """The newest first, those that come after the batch `after`."""
        ...

    async def unended_batches(self) -> Sequence[Batch]: ...

    async def change_batch(
        self,
        batch_id: str,
        change: Change,
        files: Sequence[tuple[StoredFile, FileWriter]] = (),
        kept_until: float = 0,
    ) -> Batch | None:
        """Change a batch, and keep its files in the same moment; returns it as it is then, None where there is none.
        One that ends by that is kept until then, and its job forgotten; one that has ended before stays as it is. Where
        its webhook tells of that end, the delivery (of `Batch.as_ended_job`) is kept in the same moment."""
        ...
