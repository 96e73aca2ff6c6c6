"""Places of a job's data: URLs of files, folders and patterns, on this machine or in buckets. Blocks.

`file:///data/in`, `/data/in`, `s3://bucket/in`, and as patterns `/data/in/*.jsonl`, `s3://bucket/**/*.npz`: `*` is
anything within a part of the path, `**` any parts.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from protocol.errors import InvalidArgument, NotFound, Unavailable
from protocol.jobs.source import DataFormat
from repository.stores.client import Bucket, StoredObject
from repository.stores.targets import BucketTarget, FileTarget, FolderTarget, check_within, opened_path
from repository.stores.urls import StoreUrl, is_store_url, parse_store_url

MAX_FILES = 1_000_000
# What is asked of a bucket at a time.
READ_BYTES = 4 << 20
_FILE_SCHEME = "file://"

Place: TypeAlias = Path | StoreUrl
"""Where data is or goes: a path on this machine, or one in a bucket. Either may be a pattern."""


_Matches: TypeAlias = Callable[[str], bool]


class InputFile(Protocol):
    """One file of an input.

    Attributes:
        name: its path below the input's place, or its own name.
        size: in bytes.
        stamp: changes with its content.
    """

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def stamp(self) -> str: ...

    def open(self) -> BinaryIO:
        """Seekable; the caller closes it. Raises ServerError, here or when it is read."""
        ...


def parse_place(text: str) -> Place:
    """Raises InvalidArgument."""
    try:
        if is_store_url(text) and not text.startswith(_FILE_SCHEME):
            return parse_store_url(text)
    except ValueError as error:
        raise InvalidArgument(f"url '{text:.200}': {error}") from None
    path = text.removeprefix(_FILE_SCHEME)
    if not path or "\0" in path or (path is not text and not path.startswith("/")):
        raise InvalidArgument(f"url '{text:.200}': expected a path, file:///path, or s3://, gs:// or as:// and a path")
    return Path(path)


def files_of(
    place: Place, data_format: DataFormat, environment: Mapping[str, str], within: Path | None = None
) -> Sequence[InputFile]:
    """The files of a place, by their names: one file, those that a pattern matches, or those of a folder that are of
    the format by their suffix, and in its folders. What begins with a dot or `_` is left out. `within` is the folder
    that local files must lie in, wherever links lead.

    Raises:
        NotFound: there is none.
        ServerError: it cannot be looked at.
    """
    found: Sequence[InputFile]
    if isinstance(place, Path):
        found = _local_files(place, data_format, within)
    else:
        found = _bucket_files(place, data_format, Bucket(place, environment))
    if not found:
        raise NotFound(f"'{place}': there is no such file, and none of format {data_format} below it")
    if len(found) > MAX_FILES:
        raise InvalidArgument(f"'{place}' has {len(found)} files, expected at most {MAX_FILES}")
    return sorted(found, key=lambda file: file.name)


def target_of(place: Place, environment: Mapping[str, str], within: Path | None = None) -> FileTarget:
    """A folder, which is made when it is opened, and must lie within another one, or a place in a bucket."""
    return FolderTarget(place, within) if isinstance(place, Path) else BucketTarget(Bucket(place, environment))


def reads(place: Place, data_format: DataFormat, folder: Place, name: str) -> bool:
    """Whether a place has a file of this name in a folder among its own."""
    if isinstance(place, Path) or isinstance(folder, Path):
        if not (isinstance(place, Path) and isinstance(folder, Path)):
            return False
        parts, path = place.parts, (*folder.parts, name)
    elif replace(place, path="") != replace(folder, path=""):
        return False
    else:
        parts, path = _parts(place), (*_parts(folder), name)
    base, pattern = _split(parts)
    return path[: len(base)] == (*base,) and _is_wanted("/".join(path[len(base) :]), pattern, data_format)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """Implements `InputFile`."""

    path: Path
    name: str
    size: int
    stamp: str
    within: Path | None = None

    def open(self) -> BinaryIO:
        """Raises Forbidden, too: by a link it lies elsewhere than `within`."""
        try:
            return self._opened()
        except OSError as error:
            raise _os_error(self.path, error) from None

    def _opened(self) -> BinaryIO:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not hold it
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidArgument(f"'{self.path}' cannot be read: no regular file")
            if self.within is not None:
                check_within(self.path, opened_path(descriptor, self.path), self.within)
            return open(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise


@dataclass(frozen=True, slots=True)
class BucketFile:
    """Implements `InputFile`."""

    bucket: Bucket
    item: StoredObject
    name: str

    @property
    def size(self) -> int:
        return self.item.size

    @property
    def stamp(self) -> str:
        return self.item.etag or str(self.item.modified)

    def open(self) -> BinaryIO:
        return io.BufferedReader(_RangeReader(self.bucket, self.item), READ_BYTES)


@dataclass(eq=False)
class _RangeReader(io.RawIOBase):
    """An object of a bucket as a file: each read is a request for a range of it."""

    bucket: Bucket
    item: StoredObject
    position: int = field(default=0, init=False)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.item.size}[whence]
        self.position = max(start + offset, 0)
        return self.position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer, in typeshed's words
        view = memoryview(buffer).cast("B")
        start, end = self.position, min(self.position + len(view), self.item.size)
        for chunk in self.bucket.read(self.item, start, end) if start < end else ():
            taken = self.position - start
            view[taken : taken + len(chunk)] = chunk
            self.position += len(chunk)
        return self.position - start


def _local_files(place: Path, data_format: DataFormat, within: Path | None) -> list[LocalFile]:
    folder, pattern = _split(place.parts)
    root = Path(*folder)
    if pattern is None and root.is_file():
        return [_local_file(root, root.name, within)]
    try:
        return [_local_file(path, name, within) for path, name in _walk(root) if _is_wanted(name, pattern, data_format)]
    except OSError as error:
        raise _os_error(root, error) from None


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                yield path, _text(path.relative_to(root).as_posix())


def _text(name: str) -> str:
    """Raises InvalidArgument: positions are kept as text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"file {name!a}: expected a name in UTF-8") from None
    return name


def _local_file(path: Path, name: str, within: Path | None) -> LocalFile:
    status = path.stat()
    return LocalFile(path, name, status.st_size, f"{status.st_size}-{status.st_mtime_ns}", within)


def _bucket_files(place: StoreUrl, data_format: DataFormat, bucket: Bucket) -> list[BucketFile]:
    parts, pattern = _split(_parts(place))
    folder = "/".join(parts)
    if pattern is None and folder and (item := bucket.find(folder)) is not None:
        return [BucketFile(bucket, item, parts[-1])]
    prefix = f"{folder}/" if folder else ""
    return [
        BucketFile(bucket, item, name)
        for item in bucket.list(folder)
        if item.key.startswith(prefix)
        and _is_wanted(name := item.key.removeprefix(prefix), pattern, data_format)
        and not any(part.startswith((".", "_")) for part in name.split("/")[:-1])
    ]


def _parts(place: StoreUrl) -> tuple[str, ...]:
    return tuple(place.path.split("/")) if place.path else ()


def _split(parts: Sequence[str]) -> tuple[Sequence[str], _Matches | None]:
    """The folder before the first part with a `*`, and what tells names below it that match."""
    first = next((place for place, part in enumerate(parts) if "*" in part), None)
    return (parts, None) if first is None else (parts[:first], _matcher("/".join(parts[first:])))


def _matcher(pattern: str) -> _Matches:
    """Raises InvalidArgument."""
    import re2  # type: ignore[import-untyped]  # google-re2 has no annotations; no pattern can stall the server

    words = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*"}
    pieces = re.split(r"(\*\*/|\*\*|\*)", pattern)
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile("".join(words.get(piece, re2.escape(piece)) for piece in pieces), options)
    except re2.error:
        raise InvalidArgument(f"pattern '{pattern:.200}' is too large") from None
    return lambda name: compiled.fullmatch(name) is not None


def _is_wanted(name: str, matches: _Matches | None, data_format: DataFormat) -> bool:
    if name.rpartition("/")[2].startswith((".", "_")):
        return False
    return name.lower().endswith(data_format.suffixes) if matches is None else matches(name)


def _os_error(path: Path, error: OSError) -> InvalidArgument | NotFound | Unavailable:
    text = f"'{path}' cannot be read: {error.strerror or error}"
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NotFound(text)
    return InvalidArgument(text) if isinstance(error, (PermissionError, IsADirectoryError)) else Unavailable(text)
