"""A repository in an object store, and what all of a server share: credentials and cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from repository.stores.cache import FileCache
from repository.stores.client import Bucket, Patience
from repository.stores.snapshot import Snapshot, models_in
from repository.stores.urls import StoreUrl


class StoreRepository:
    """A repository that is looked into by listing. Two of the same URL are equal."""

    def __init__(self, bucket: Bucket, cache: FileCache) -> None:
        self.url = bucket.url
        self._bucket = bucket
        self._cache = cache

    def __str__(self) -> str:
        return str(self.url)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreRepository) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def models(self) -> dict[str, Snapshot]:
        """All models, by one listing of everything. Blocks; raises as `Bucket.list`."""
        return models_in(str(self), self._bucket, self._cache, self._bucket.list(self.url.path))

    def model(self, name: str) -> Snapshot | None:
        """One model, by a listing of what is below it alone."""
        objects = self._bucket.list("/".join(part for part in (self.url.path, name) if part))
        return models_in(str(self), self._bucket, self._cache, objects).get(name)


class Stores:
    """Makes repositories of URLs."""

    def __init__(self, environment: Mapping[str, str], cache: FileCache, patience: Patience | None = None) -> None:
        self._environment = environment
        self._patience = patience
        self.cache = cache

    def repository(self, url: StoreUrl) -> StoreRepository:
        """Opens no connection yet."""
        return StoreRepository(Bucket(url, self._environment, self._patience), self.cache)


def default_cache_directory(environment: Mapping[str, str]) -> Path:
    caches = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches, "trioton", "models")
