"""Places of a run: where its results, errors and state are. Blocks, but for `output_place`.

A file of JSON lines has its errors and its state beside it. Everything else is a folder, or a place in a bucket, of
files that are written whole, with the state among them. Each shard has a file or a folder of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from actors.jobs.data.places import Place, target_of
from actors.jobs.data.writer import OutputWriter
from protocol.jobs.source import DataFormat
from repository.stores.client import Bucket
from repository.stores.targets import BucketTarget
from repository.stores.urls import StoreUrl
from trioton.batch.input import Shard
from trioton.batch.openai_lines import encode_line
from trioton.batch.output import FolderOutput, LinesOutput, parts_from
from trioton.batch.state import State, StateFile, UnusableState, decode_state, encode_state

# In a folder; whoever reads it as data leaves out what begins so.
STATE_NAME = "_state.json"


class States(Protocol):
    """Where the state of a run is."""

    def locked(self) -> AbstractContextManager[None]:
        """Nobody else has it as long as the block lasts. Raises UnusableState, OSError."""
        ...

    def read(self) -> State | None:
        """None where there is none. Raises UnusableState, ServerError, OSError."""
        ...

    def write(self, state: State) -> None:
        """Returns when it is durable. Raises ServerError, OSError."""


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Where one shard's results go. `is_file` where that is one file of JSON lines."""

    place: Place
    data_format: DataFormat
    is_file: bool

    @property
    def errors(self) -> str:
        """Where failures are, for a sentence."""
        return f"{self.place}.errors.jsonl" if self.is_file else f"{self.place}/errors-*.jsonl"

    def names(self) -> tuple[Place, Sequence[str]]:
        """A folder, and names as those of the files that are written there."""
        if self.is_file:
            assert isinstance(self.place, Path)
            return self.place.parent, (self.place.name, f"{self.place.name}.errors.jsonl")
        return self.place, (f"results-0.{self.data_format}", "errors-0.jsonl")

    def states(self, environment: Mapping[str, str]) -> States:
        """Raises OSError: the folder cannot be made."""
        if isinstance(self.place, StoreUrl):
            return BucketStates(Bucket(self.place, environment), f"{self.place.path}/{STATE_NAME}".lstrip("/"))
        folder = self.place.parent if self.is_file else self.place
        folder.mkdir(parents=True, exist_ok=True)
        return StateFile(self.place.with_name(f"{self.place.name}.state") if self.is_file else folder / STATE_NAME)

    def check_empty(self) -> None:
        """Raises UnusableState where there is something that no state tells of."""
        if not isinstance(self.place, Path):
            return
        found = [self.place] if self.is_file and os.path.lexists(self.place) else parts_from(self.place, 0)
        if found:
            raise UnusableState(
                f"'{found[0]}' is there already, and no state of a run that could go on; --restart removes it"
            )

    @contextmanager
    def results(
        self, state: State, environment: Mapping[str, str], *, is_batched: bool
    ) -> Iterator[LinesOutput | FolderOutput]:
        """Ready to go on where the state says; what is there beyond that is removed, but in a bucket, where only what
        has the same name is overwritten. Raises UnusableState, ServerError, OSError."""
        if self.is_file:
            assert isinstance(self.place, Path)
            lines = LinesOutput(self.place, self.place.with_name(f"{self.place.name}.errors.jsonl"))
            try:
                lines.open(state.ends)
                yield lines
            finally:
                lines.close()
            return
        if isinstance(self.place, Path):
            for path in parts_from(self.place, state.position.row):
                path.unlink()
        target = target_of(self.place, environment)
        writer = OutputWriter(target, self.data_format, encode_line, is_batched=is_batched)
        writer.open()
        yield FolderOutput(writer)


def output_place(place: Place, data_format: DataFormat, shard: Shard) -> OutputPlace:
    """Where a shard's results go. Pure."""
    is_file = isinstance(place, Path) and data_format is DataFormat.JSON_LINES and place.suffix in data_format.suffixes
    if shard.count == 1:
        return OutputPlace(place, data_format, is_file)
    name = f"{shard.number:05}-of-{shard.count:05}"
    if isinstance(place, StoreUrl):
        return OutputPlace(_below(place, name), data_format, is_file)
    own = place.with_name(f"{place.stem}-{name}{place.suffix}") if is_file else place / name
    return OutputPlace(own, data_format, is_file)


def _below(url: StoreUrl, name: str) -> StoreUrl:
    path = f"{url.path}/{name}".lstrip("/")
    return StoreUrl(url.scheme, url.bucket, path, url.endpoint, url.account)


@dataclass(frozen=True, slots=True)
class BucketStates:
    """Implements `States`. Nothing keeps two processes from one output in a bucket."""

    bucket: Bucket
    key: str

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self) -> State | None:
        found = self.bucket.find(self.key)
        if found is None:
            return None
        data = b"".join(bytes(chunk) for chunk in self.bucket.read(found, 0, found.size))
        return decode_state(data, f"{self.bucket.url}/{STATE_NAME}")

    def write(self, state: State) -> None:
        BucketTarget(self.bucket).write(STATE_NAME, encode_state(state))
