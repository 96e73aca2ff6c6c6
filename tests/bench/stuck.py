"""Who waits for whom, where a load generator does not end: what lies unread in the sockets between it and a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"


def unread(port: int) -> str:
    """Of the connections to a port of this machine: how many there are, and on which side something is not read."""
    count = at_server = at_client = 0
    for local, remote, waits in _connections():
        if local == port:
            count += 1
            at_server += waits
        elif remote == port:
            at_client += waits
    return (
        f"{count} connections, {at_server} with something that the server has not read, {at_client} with something "
        "that its client has not"
    )


def _connections() -> Iterator[tuple[int, int, bool]]:
    """Local and remote port, and whether something is there that has not been read."""
    for table in _TABLES:
        if not table.is_file():
            continue
        for line in table.read_text().splitlines()[1:]:
            _, local, remote, state, queues = line.split()[:5]
            if state == _ESTABLISHED:
                yield _port(local), _port(remote), int(queues.partition(":")[2], 16) > 0


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
