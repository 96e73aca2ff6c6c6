"""The driver `local`: replicas are processes of this machine, on its loopback interface."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping

import trio

from trioton.flags import ENVIRONMENT_PREFIX
from trioton.fleet.driver import Address, CannotStart, Driver, Running
from trioton.fleet.processes import Child, end_text
from trioton.fleet.words import ServerWords

logger = logging.getLogger("trioton.fleet.replica")

_LOCAL = "127.0.0.1"
# What is the balancer's, and no replica's.
FRONT_FLAGS = frozenset(
    (
        *(f"{word}-{what}" for word in ("http", "grpc", "metrics") for what in ("address", "port", "use-ssl")),
        *(f"{word}-{what}" for word in ("http", "grpc") for what in ("server-cert", "server-key", "root-cert")),
        "grpc-use-ssl-mutual",
        "reuse-http-port",
        "reuse-grpc-port",
    )
)
_THIS_INSTALLATION = (sys.executable, "-m", "trioton", "serve")


class LocalReplica(Running):
    """A server's process."""

    def __init__(self, child: Child, address: Address) -> None:
        self._child = child
        self.address = address
        self.about = f"pid {child.pid}"

    async def wait(self) -> str:
        return end_text(await self._child.wait())

    def stop(self) -> None:
        self._child.send(signal.SIGTERM)

    def kill(self) -> None:
        self._child.send(signal.SIGKILL)


class LocalDriver(Driver):
    """Starts processes in `nursery`, with `own_flags` behind all others, so that they win."""

    def __init__(self, nursery: trio.Nursery, environment: Mapping[str, str], own_flags: tuple[str, ...] = ()) -> None:
        self._nursery = nursery
        fronts = {f"{ENVIRONMENT_PREFIX}{name.upper().replace('-', '_')}" for name in FRONT_FLAGS}
        self._environment = {name: value for name, value in environment.items() if name not in fronts}
        self._own_flags = own_flags

    async def start(self, name: str, words: ServerWords) -> LocalReplica:
        address = Address(_LOCAL, *_free_ports(3))
        given = words.without(FRONT_FLAGS).arguments
        command = [*(words.command or _THIS_INSTALLATION), *given, *self._own_flags, *listening(address)]
        try:
            child = Child(command, self._environment)
        except OSError as error:
            raise CannotStart(f"cannot start a process: {os.strerror(error.errno or 0)}") from None
        self._nursery.start_soon(child.run, lambda line: logger.info("%s: %s", name, line))
        return LocalReplica(child, address)


def listening(address: Address) -> list[str]:
    """The flags that have a server listen there, without TLS, which the balancer ends: also where a configuration file
    says otherwise."""
    return [
        *(f"--{word}-address={address.host}" for word in ("http", "grpc", "metrics")),
        f"--http-port={address.http_port}",
        f"--grpc-port={address.grpc_port}",
        f"--metrics-port={address.metrics_port}",
        "--allow-http=true",
        "--allow-grpc=true",
        "--allow-metrics=true",
        "--http-use-ssl=false",
        "--metrics-use-ssl=false",
        "--grpc-use-ssl=false",
        "--grpc-use-ssl-mutual=false",
    ]


def _free_ports(count: int) -> list[int]:
    """All differ. Another process may take one before the server does: that one does not start then, and the next try
    has others."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((_LOCAL, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
