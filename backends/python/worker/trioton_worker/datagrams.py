"""The control socket of a host or fork server: JSON datagrams with file descriptors."""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

from .connection import encode_json

_MOST_DESCRIPTORS = 2
_MESSAGE_SIZE = 65536


def receive(control: socket.socket) -> tuple[Any, list[int]]:
    """The next message; None when the server has closed its end."""
    space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
    data, ancillary, _, _ = control.recvmsg(_MESSAGE_SIZE, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content)
    return (json.loads(data) if data else None), descriptors.tolist()


def answer_forked(control: socket.socket, pid: int) -> None:
    """Tell the server of a child. Until it is reaped, nobody else has its number."""
    process_fd = os.pidfd_open(pid)
    rights = array.array("i", [process_fd])
    control.sendmsg([encode_json({"pid": pid})], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.close(process_fd)
