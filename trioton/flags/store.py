"""Flags for model repositories in object stores. Part of `trioton.settings`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repository.stores.cache import FileCache
from repository.stores.store_repository import Stores, default_cache_directory
from repository.stores.urls import StoreUrl, is_store_url, parse_store_url
from trioton.flags.fields import UsageError, filesystem_path, flag, integer

STORES = "Object stores"
DEFAULT_CACHE_BYTES = 50_000_000_000


def repository_place(text: str) -> Path | StoreUrl:
    """Raises ValueError where a URL is not one of a store, or there is no path."""
    return parse_store_url(text) if is_store_url(text) else filesystem_path(text)


def local_path(text: str) -> Path:
    """For commands that work on folders.

    Raises:
        UsageError: it is a URL, or no path.
    """
    if is_store_url(text):
        raise UsageError(f"'{text}' is no folder on this machine; only trioton serve takes URLs of object stores")
    try:
        return filesystem_path(text)
    except ValueError as error:
        raise UsageError(f"'{text}': {error}") from None


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class StoreFlags:
    """The part of the settings that is about object stores."""

    model_repository_cache_dir: str = flag(
        "",
        str,
        group=STORES,
        metavar="<path>",
        help="Where files of object stores are kept on this machine; where absent, trioton/models in the user's cache.",
    )
    model_repository_cache_size: int = flag(
        DEFAULT_CACHE_BYTES,
        integer(0),
        group=STORES,
        metavar="<integer>",
        help="How many bytes they may have. Above it, files that no loaded model uses are removed.",
    )

    def stores(self, environment: Mapping[str, str]) -> Stores:
        """The object stores that repositories may lie in. Touches neither the network nor the disk."""
        directory = self.model_repository_cache_dir or default_cache_directory(environment)
        return Stores(environment, FileCache(Path(directory).absolute(), self.model_repository_cache_size))
