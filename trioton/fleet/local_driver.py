"""The driver `local`: replicas are processes of this machine, on its loopback interface."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping

import trio

from backends.devices.machine import VISIBLE_DEVICES
from trioton.flags.fields import ENVIRONMENT_PREFIX
from trioton.fleet.driver import Address, CannotStart, Driver, Running
from trioton.fleet.gpus import GpuShares, NoGpus
from trioton.fleet.listening import FRONT_FLAGS, THIS_INSTALLATION, free_address, listening
from trioton.fleet.processes import Child, end_text
from trioton.fleet.words import ServerWords

logger = logging.getLogger("trioton.fleet.replica")

_LOCAL = "127.0.0.1"


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
    """Starts processes in `nursery`, with `own_flags` behind all others, so that they win; with `gpus` each has its
    own."""

    def __init__(
        self,
        nursery: trio.Nursery,
        environment: Mapping[str, str],
        own_flags: tuple[str, ...] = (),
        gpus: GpuShares | None = None,
    ) -> None:
        self._nursery = nursery
        self._gpus = gpus
        fronts = {f"{ENVIRONMENT_PREFIX}{name.upper().replace('-', '_')}" for name in FRONT_FLAGS}
        self._environment = {name: value for name, value in environment.items() if name not in fronts}
        self._own_flags = own_flags

    async def start(self, name: str, words: ServerWords) -> LocalReplica:
        address = free_address(_LOCAL)
        given = words.without(FRONT_FLAGS).arguments
        command = [*(words.command or THIS_INSTALLATION), *given, *self._own_flags, *listening(address)]
        environment = self._environment if self._gpus is None else self._with_gpus(name, self._gpus)
        try:
            child = Child(command, environment)
        except OSError as error:
            self._give_back(name)
            raise CannotStart(f"cannot start a process: {os.strerror(error.errno or 0)}") from None
        self._nursery.start_soon(self._run, child, name)
        return LocalReplica(child, address)

    def _with_gpus(self, name: str, gpus: GpuShares) -> Mapping[str, str]:
        """Raises CannotStart."""
        try:
            return {**self._environment, VISIBLE_DEVICES: gpus.take(name)}
        except NoGpus as error:
            raise CannotStart(str(error)) from None

    async def _run(self, child: Child, name: str) -> None:
        try:
            await child.run(lambda line: logger.info("%s: %s", name, line))
        finally:
            self._give_back(name)

    def _give_back(self, name: str) -> None:
        if self._gpus is not None:
            self._gpus.give_back(name)
