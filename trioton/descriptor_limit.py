"""Raises the process's limit of open descriptors (`ulimit -n`): connections and models take some each.

Shells and service managers start processes with 1024, for the sake of programs that wait by `select`.
"""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource

# As much as the systemd unit has. Not all that is allowed, which may be a thousand million: there are programs, and
# models may start them, that close each possible descriptor.
WANTED = 65_536


def descriptor_limit() -> int:
    """How many this process may have."""
    if sys.platform == "win32":
        return WANTED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise the soft limit to `WANTED`, or to the hard limit where that is less; never lower it. Child processes
    inherit it. Where the system refuses, the limit stays."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a system with a lower limit of its own
        return
