"""Control socket of a process that starts others (host, fork server): JSON datagrams with file descriptors.

Flow: [process control] → `worker.trioton_worker.datagrams`.
"""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import trio

_MESSAGE_SIZE = 65536


class HungUp(Exception):
    """The process has closed its end."""


class ProcessControl:
    """The server's end of a socket of type SOCK_SEQPACKET. One question at a time."""

    def __init__(self, control: socket.socket) -> None:
        self._socket = trio.socket.from_stdlib_socket(control)

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() != -1

    def close(self) -> None:
        self._socket.close()

    async def ask(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> tuple[Any, list[int]]:
        """The answer, and the descriptors that come with it. Raises HungUp."""
        await self.send(message, descriptors)
        return await self.receive()

    async def receive(self) -> tuple[Any, list[int]]:
        """Receive a message that was not asked for. Raises HungUp."""
        try:
            data, ancillary, _, _ = await self._socket.recvmsg(
                _MESSAGE_SIZE, socket.CMSG_SPACE(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
            )
        except (OSError, trio.ClosedResourceError):
            data, ancillary = b"", []
        if not data:
            raise HungUp
        received = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(content)
        return json.loads(data), received.tolist()

    async def send(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Raises HungUp."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            await self._socket.sendmsg([json.dumps(dict(message)).encode()], rights)
        except (OSError, trio.ClosedResourceError):
            raise HungUp from None
