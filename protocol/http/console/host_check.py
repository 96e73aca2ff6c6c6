"""Host check against DNS rebinding: whether a request's `Host` may be this server's.

A page of another site can have its own name resolve to this machine, and so be taken by the browser for a page of this
server. Its requests carry that name; a server without keys must not answer them. An address cannot be forged so, nor
can `localhost`. Pure.
"""

from __future__ import annotations

import ipaddress

LOCAL = "localhost"


def is_own_host(host: str, names: frozenset[str]) -> bool:
    """`host` is the header's value; `names` are those that the server is known by, in lower case."""
    name = _without_port(host.strip()).rstrip(".").lower()
    return name == LOCAL or name.endswith(f".{LOCAL}") or name in names or _is_address(name)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
