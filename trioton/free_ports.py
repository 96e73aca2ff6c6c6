"""Ports for servers that are about to start."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack


def free_ports(host: str, wanted: Sequence[int]) -> list[int]:
    """With a free port in place of each 0; all differ. Another process may take one before the server does: that one
    does not start then, and the next try has others.

    Raises:
        OSError: the host is none of this machine.
    """
    with ExitStack() as taken:  # each port by a socket, until all are known
        return [port or _free_port(host, taken) for port in wanted]


def _free_port(host: str, taken: ExitStack) -> int:
    one = taken.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    one.bind((host, 0))
    port: int = one.getsockname()[1]
    return port
