"""Client of one bucket of an object store: listing, reading and writing.

Flow: snapshots and downloads → [client] → obstore, which retries what may succeed the next time. The only module that
imports obstore, and only when a store is opened. Everything here blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

from protocol.errors import NotFound, Unsupported
from repository.stores.credentials import store_options
from repository.stores.errors import AccessDenied, store_error
from repository.stores.urls import StoreUrl

T = TypeVar("T")

# What a read holds in memory at a time.
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a store is waited for, in seconds, and how often it is asked again. A request that fails may be sent
    `retries` times more, the last of them at most `retry_seconds` after the first."""

    connect_seconds: float = 5.0
    read_seconds: float = 20.0
    request_seconds: float = 300.0
    retries: int = 4
    retry_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a listing. `key` is its name in the bucket; `etag` may be empty; `modified` in nanoseconds since
    1970."""

    key: str
    size: int
    etag: str
    modified: int


class Bucket:
    """The bucket of a URL; the URL's path is of no matter here. May be used by several threads."""

    def __init__(self, url: StoreUrl, environment: Mapping[str, str], patience: Patience | None = None) -> None:
        self.url = url
        self._environment = environment
        self._patience = patience or Patience()
        self._lock = threading.Lock()
        self._store: Any = None

    def list(self, prefix: str) -> list[StoredObject]:
        """Every object whose key lies below `prefix`, which names a whole directory; empty for the whole bucket.

        Raises:
            NotFound: no such bucket.
            AccessDenied, InvalidArgument, Unavailable: by `store_error`.
            Unsupported: the library is not installed.
        """

        def collect(store: Any) -> list[StoredObject]:
            import obstore

            return [_stored(each) for each in obstore.list(store, prefix=prefix or None).collect()]

        return self._call(collect, f"list '{prefix}/'" if prefix else "list the bucket")

    def find(self, key: str) -> StoredObject | None:
        """One object; None where there is none of this key. Raises as `list`."""

        def head(store: Any) -> StoredObject:
            import obstore

            return _stored(obstore.head(store, key))

        try:
            return self._call(head, f"look for '{key}'")
        except NotFound:
            return None

    def read(self, item: StoredObject, start: int, end: int) -> Iterator[memoryview]:
        """The bytes from `start` to before `end`, in chunks.

        Raises:
            Unavailable: the object has changed since it was listed; and as `list`.
        """
        doing = f"read '{item.key}'"

        def get(store: Any) -> Any:
            import obstore

            options = {"range": (start, end), "if_match": item.etag or None}
            return obstore.get(store, item.key, options=cast(Any, options)).stream(CHUNK_BYTES)

        stream = iter(self._call(get, doing))
        while True:
            try:
                chunk = next(stream)
            except StopIteration:
                return
            except Exception as exc:
                raise store_error(exc, self.url, doing) from None
            yield memoryview(chunk)

    def write(self, key: str, data: bytes) -> None:
        """Write an object whole, in the place of one of the same key.

        Raises:
            Unavailable, AccessDenied, InvalidArgument, NotFound, Unsupported: as `list`.
        """

        def put(store: Any) -> None:
            import obstore

            obstore.put(store, key, data)

        self._call(put, f"write '{key}'")

    def _call(self, call: Callable[[Any], T], doing: str) -> T:
        """Once more with credentials read anew, if access is denied: they may have been replaced."""
        try:
            return self._guarded(call, doing)
        except AccessDenied:
            with self._lock:
                self._store = None
            return self._guarded(call, doing)

    def _guarded(self, call: Callable[[Any], T], doing: str) -> T:
        with self._lock:
            if self._store is None:
                self._store = self._open()
            store = self._store
        try:
            return call(store)
        except Exception as exc:
            raise store_error(exc, self.url, doing) from None

    def _open(self) -> Any:
        try:
            from obstore.store import AzureStore, GCSStore, S3Store
        except ImportError as exc:
            raise Unsupported(
                f"{self.url}: repositories in object stores need the package obstore: pip install 'trioton[stores]' "
                f"({exc})"
            ) from None
        options = store_options(self.url, self._environment)
        patience = self._patience
        authorities = {} if options.authorities is None else {"root_certificate": options.authorities}
        more: dict[str, Any] = {
            "config": dict(options.config),
            "client_options": {
                "allow_http": True,  # where an operator wrote http, that is what is meant
                "connect_timeout": timedelta(seconds=patience.connect_seconds),
                "read_timeout": timedelta(seconds=patience.read_seconds),
                "timeout": timedelta(seconds=patience.request_seconds),
                **authorities,
            },
            "retry_config": {
                "max_retries": patience.retries,
                "retry_timeout": timedelta(seconds=patience.retry_seconds),
            },
        }
        if options.key is not None:
            key = {**options.key, "expires_at": None}
            more["credential_provider"] = lambda: key
        kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "as": AzureStore}
        try:
            return kinds[self.url.scheme](self.url.bucket, **more)
        except Exception as exc:
            raise store_error(exc, self.url, "open the store") from None


def _stored(found: Mapping[str, Any]) -> StoredObject:
    return StoredObject(found["path"], found["size"], found["e_tag"] or "", _nanoseconds(found["last_modified"]))


def _nanoseconds(time: Any) -> int:
    return int(time.timestamp() * 1_000_000) * 1000
