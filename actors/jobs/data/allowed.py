"""Which places jobs may read from and write to: those below the prefixes that an operator allows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from actors.jobs.data.places import Place
from protocol.errors import Forbidden
from repository.stores.urls import StoreUrl


class AllowedPlaces:
    """Prefixes end where a part of a path does: `s3://data/in` allows `s3://data/in/x`, not `s3://data/input`."""

    def __init__(self, prefixes: Sequence[Place]) -> None:
        self._prefixes = prefixes

    def check(self, place: Place) -> tuple[Place, Path | None]:
        """The place, and of one on this machine the folder that it must stay in; both without links. Looks at the
        disk.

        Raises:
            Forbidden: it is not below any prefix.
        """
        if isinstance(place, StoreUrl):
            if not any(isinstance(each, StoreUrl) and _is_below(place, each) for each in self._prefixes):
                raise _forbidden(place)
            return place, None
        real = _without_links(place)
        for prefix in self._prefixes:
            if isinstance(prefix, Path) and real.is_relative_to(root := Path(os.path.realpath(prefix))):
                return real, root
        raise _forbidden(place)


def _is_below(place: StoreUrl, prefix: StoreUrl) -> bool:
    is_same_bucket = (place.scheme, place.bucket, place.endpoint, place.account) == (
        prefix.scheme,
        prefix.bucket,
        prefix.endpoint,
        prefix.account,
    )
    return is_same_bucket and f"{place.path}/".startswith(f"{prefix.path}/" if prefix.path else "")


def _without_links(path: Path) -> Path:
    """Up to the first part of a pattern. Raises Forbidden: it is relative, or goes up."""
    if not path.is_absolute() or ".." in path.parts:
        raise _forbidden(path)
    first = next((place for place, part in enumerate(path.parts) if "*" in part), len(path.parts))
    return Path(os.path.realpath(Path(*path.parts[:first])), *path.parts[first:])


def _forbidden(place: Place) -> Forbidden:
    return Forbidden(f"jobs may not use '{str(place)[:200]}': no --jobs-allow-url=<prefix> of the server's allows it")
