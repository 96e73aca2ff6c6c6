"""Registry of response cache implementations, by their name in `--cache-config`.

`local` and `redis` come with the server. Any installed package can add one by an entry point of the group
`trioton.caches`:

    [project.entry-points."trioton.caches"]
    my_cache = "my_package.my_module:MyCache"
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from actors.cache.interface import Cache

GROUP = "trioton.caches"

_OWN = {
    "local": EntryPoint("local", "actors.cache.local:LocalCache", GROUP),
    "redis": EntryPoint("redis", "actors.cache.redis:RedisCache", GROUP),
}


class UnusableCache(Exception):
    """The response cache that was asked for cannot be used. The text says why and what to change."""


def find_cache(name: str, extra: Mapping[str, type[Cache]] | None = None) -> type[Cache]:
    """The class of cache `name`, imported now if it was not before; blocks meanwhile. `extra` wins over everything.

    Raises:
        UnusableCache: there is none of this name, two packages offer it, or it cannot be imported.
    """
    if extra is not None and name in extra:
        return extra[name]
    found = {point.value: point for point in entry_points(group=GROUP) if point.name == name}
    if name in _OWN:
        found = {_OWN[name].value: _OWN[name]}
    if not found:
        known = sorted({*_OWN, *(extra or ()), *(point.name for point in entry_points(group=GROUP))})
        raise UnusableCache(f"unknown cache '{name}'; installed are: {', '.join(known)}")
    if len(found) > 1:
        raise UnusableCache(f"cache '{name}' is offered more than once: {', '.join(sorted(found))}; keep one")
    (point,) = found.values()
    try:
        loaded = point.load()
    except ImportError as error:
        hint = "; install it with: pip install 'trioton[redis]'" if name == "redis" else ""
        raise UnusableCache(f"cache '{name}' ({point.value}) needs what is not installed: {error}{hint}") from error
    except Exception as error:  # whatever a stranger's module does when imported
        raise UnusableCache(
            f"cache '{name}' ({point.value}) failed when it was imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Cache)):
        raise UnusableCache(f"cache '{name}' ({point.value}) is no subclass of trioton.caches.Cache")
    return loaded
