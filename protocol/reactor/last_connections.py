"""Closes a listening socket without resetting connections: accepts all that the kernel has completed before it closes.

A socket that is closed while connections wait to be accepted resets them, and their clients lose what they have sent.
So the kernel is first told to leave new clients unanswered (a packet filter on the socket that drops SYN, which needs
no rights; classic BPF, Linux only), then what is there is accepted, and nothing is lost when the socket closes: clients
that were left unanswered ask again after a second, and find another listener, or none.
"""

from __future__ import annotations

import ctypes
import logging
import select
import socket
import struct
import sys
from collections.abc import Sequence

import trio

logger = logging.getLogger(__name__)

# For handshakes that have begun.
HANDSHAKE_SECONDS = 0.2
# Under a load that keeps the accept loop behind.
MOST_SECONDS = 5.0

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which the `socket` module does not name
_FLAGS = 13  # byte of a TCP header
_SYN, _SYN_AND_ACK = 0x02, 0x12
# Code, jump if true, jump if false, value: as in linux/filter.h.
_DROP_SYN = (
    (0x30, 0, 0, _FLAGS),  # load the byte
    (0x54, 0, 0, _SYN_AND_ACK),  # and
    (0x15, 0, 1, _SYN),  # jump if equal
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # keep
)


async def refuse_more(listeners: Sequence[trio.SocketListener]) -> None:
    """Returns when a running accept loop has had time to accept all connections that will ever come. Where the system
    does not support that it returns at once, and the last connections may be reset."""
    holds_off = [_drops_syn(listener.socket) for listener in listeners]
    if not all(holds_off):
        return
    await trio.sleep(HANDSHAKE_SECONDS)
    with trio.move_on_after(MOST_SECONDS):
        while any(_has_more(listener.socket) for listener in listeners):
            await trio.lowlevel.checkpoint()  # the accept loop takes one in each turn


def _has_more(listening: trio.socket.SocketType) -> bool:
    look = select.poll()
    look.register(listening, select.POLLIN)
    return bool(look.poll(0))


def _drops_syn(listening: trio.socket.SocketType) -> bool:
    if sys.platform != "linux":
        return False
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _DROP_SYN))
    try:
        # The kernel copies the program.
        program = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(code))
        listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
    except OSError as error:
        logger.debug("new connections cannot be held off: %s", error)
        return False
    return True
