"""Registry of job stores, by the scheme of `--jobs-store`.

`sqlite`, `redis` and `rediss` come with the server; the first is meant where only a folder is given. Any installed
package can add one by an entry point of the group `trioton.job_stores`, a callable of the text behind `<scheme>://` and
of the limits:

    [project.entry-points."trioton.job_stores"]
    my_store = "my_package.my_module:make_store"
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeAlias

from actors.jobs.sqlite.store import SqliteStore
from protocol.jobs.store import JobStore, Limits, UnusableStore

GROUP = "trioton.job_stores"
SQLITE = "sqlite"
_OWN = {
    scheme: EntryPoint(scheme, f"actors.jobs.redis.place:make_{scheme}_store", GROUP) for scheme in ("redis", "rediss")
}

MakeStore: TypeAlias = Callable[[str, Limits], JobStore]


def make_store(place: str, limits: Limits) -> JobStore:
    """The store at a place: a folder, or `<scheme>://…`. Blocks: it may import a package.

    Raises:
        UnusableStore: there is none of this scheme, two packages offer it, or it cannot be made.
    """
    scheme, separator, rest = place.partition("://")
    if not separator:
        return SqliteStore(Path(place), limits)
    if scheme == SQLITE:
        return SqliteStore(Path(rest), limits)
    return _made(_found(scheme), scheme, rest, limits)


def _found(scheme: str) -> EntryPoint:
    if scheme in _OWN:
        return _OWN[scheme]
    points = entry_points(group=GROUP)
    found = {point.value: point for point in points if point.name == scheme}
    if not found:
        known = sorted({SQLITE, *_OWN, *(point.name for point in points)})
        raise UnusableStore(f"unknown job store '{scheme}'; installed are: {', '.join(known)}")
    if len(found) > 1:
        raise UnusableStore(f"job store '{scheme}' is offered more than once: {', '.join(sorted(found))}; keep one")
    (point,) = found.values()
    return point


def _made(point: EntryPoint, scheme: str, rest: str, limits: Limits) -> JobStore:
    try:
        make: MakeStore = point.load()
        return make(rest, limits)
    except UnusableStore:
        raise
    except ImportError as error:
        hint = "; install it with: pip install 'trioton[redis]'" if scheme in _OWN else ""
        raise UnusableStore(
            f"job store '{scheme}' ({point.value}) needs what is not installed: {error}{hint}"
        ) from error
    except Exception as error:  # whatever a stranger's module does
        raise UnusableStore(
            f"job store '{scheme}' ({point.value}) cannot be made: {type(error).__name__}: {error}"
        ) from error
