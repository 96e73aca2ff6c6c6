"""Opens the listening sockets of the edges."""

from __future__ import annotations

import errno
import socket

import trio


async def open_listeners(
    host: str, port: int, *, backlog: int | None = None, reuse_port: bool = False
) -> list[trio.SocketListener]:
    """Listen on every address of the host; on port 0, on any free port of the first one, so that there is one to tell.

    `reuse_port` lets other processes listen on the same port, and the system spreads the connections (SO_REUSEPORT).

    Raises:
        OSError: the address cannot be had, or the system has no SO_REUSEPORT.
    """
    if reuse_port:
        listeners = await _open_shared(host, port, backlog)
    else:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=backlog)
    if port == 0:
        for listener in listeners[1:]:
            await listener.aclose()
        del listeners[1:]
    return listeners


async def _open_shared(host: str, port: int, backlog: int | None) -> list[trio.SocketListener]:
    if not hasattr(socket, "SO_REUSEPORT"):
        raise OSError(errno.EOPNOTSUPP, "this system does not let processes share a port")
    listeners: list[trio.SocketListener] = []
    try:
        for family, kind, protocol, _, address in await trio.socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            try:
                sock = trio.socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT:  # a family that the system does not have
                    continue
                raise
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                await sock.bind(address)
                sock.listen(65535 if backlog is None else backlog)
            except BaseException:
                sock.close()
                raise
            listeners.append(trio.SocketListener(sock))
        if not listeners:
            raise OSError(errno.EAFNOSUPPORT, f"this system has no family of addresses for {host}")
    except BaseException:
        for listener in listeners:
            listener.socket.close()
        raise
    return listeners
