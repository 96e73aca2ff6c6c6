"""Snapshot: the models and files of a store, as of one listing.

Flow: listing → [snapshot] → the model's fingerprint, or its download. A snapshot never changes: what is downloaded is
what was listed, or nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from repository.stores.cache import FileCache
from repository.stores.client import Bucket, StoredObject

_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One model.

    Attributes:
        url: where it lies, to tell people.
        files: its files by their paths below its directory. Empty ones are here too.
        folders: directories that the listing shows by themselves; others are known by their files.
        conflicts: paths that are both a file and a directory, which no file system can hold.
    """

    url: str
    bucket: Bucket
    cache: FileCache
    files: Mapping[str, StoredObject]
    folders: frozenset[str] = frozenset()
    conflicts: tuple[str, ...] = ()

    def entries(self) -> tuple[tuple[str, int, int], ...]:
        """Path, a number that changes with the content, and size in bytes, of each file; a directory with nothing in it
        ends in a slash and has neither."""
        files = ((path, _stamp(item), item.size) for path, item in self.files.items())
        empty = (path for path in self.folders if not any(each.startswith(f"{path}/") for each in self.files))
        return (*files, *((f"{path}/", 0, 0) for path in empty))

    def subdirectories(self) -> set[str]:
        """The names of the directories in the model's own."""
        return {path.partition("/")[0] for path in (*(each for each in self.files if "/" in each), *self.folders)}


def models_in(url: str, bucket: Bucket, cache: FileCache, objects: Iterable[StoredObject]) -> dict[str, Snapshot]:
    """The models of a repository by name, from all objects below it. `url` is the repository's."""
    prefix = f"{bucket.url.path}/" if bucket.url.path else ""
    models: dict[str, dict[str, StoredObject]] = {}
    for item in objects:
        name, slash, path = item.key.removeprefix(prefix).partition("/")
        if slash and item.key.startswith(prefix):
            models.setdefault(name, {})[path] = item
    return {name: _snapshot(f"{url}/{name}", bucket, cache, found) for name, found in sorted(models.items())}


def _snapshot(url: str, bucket: Bucket, cache: FileCache, found: Mapping[str, StoredObject]) -> Snapshot:
    """An empty object that others lie below is a directory's own, as consoles and tools make them; so is one whose name
    is a version number, for no model file has such a name."""
    parents = {path[:end] for path in found for end in range(len(path)) if path[end] == "/"}
    folders = {path for path, item in found.items() if not item.size and (path in parents or _NUMBER.fullmatch(path))}
    files = {path: item for path, item in sorted(found.items()) if path not in folders}
    return Snapshot(url, bucket, cache, files, frozenset(folders), tuple(sorted(parents & files.keys())))


def _stamp(item: StoredObject) -> int:
    if not item.etag:
        return item.modified
    return int.from_bytes(hashlib.blake2b(item.etag.encode(), digest_size=8).digest())
