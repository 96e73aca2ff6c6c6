"""Public: the interface of response caches, which keep encoded responses for the server.

An installed package offers a cache by an entry point of the group `trioton.caches`, and `--cache-config` names it:

    [project.entry-points."trioton.caches"]
    mine = "my_package.my_module:MyCache"

The server makes one object, and calls it on its Trio loop.
"""

from __future__ import annotations

from actors.cache.interface import Cache, CacheError, read_integer

__all__ = ["Cache", "CacheError", "read_integer"]
