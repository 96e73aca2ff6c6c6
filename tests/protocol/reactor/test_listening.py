"""Listening sockets: one port, a free one, a shared one, or an error."""

from __future__ import annotations

import errno
import socket

import pytest
import trio

from protocol.reactor.listening import open_listeners

HOST = "127.0.0.1"


def port_of(listener: trio.SocketListener) -> int:
    port: int = listener.socket.getsockname()[1]
    return port


@pytest.mark.parametrize("reuse_port", [False, True])
@pytest.mark.parametrize("host", [HOST, "localhost"])
async def test_port_0_is_one_free_port(host: str, reuse_port: bool) -> None:
    """Of the first address: only one can be told."""
    (listener,) = await open_listeners(host, 0, reuse_port=reuse_port)
    async with listener:
        assert port_of(listener) > 0


@pytest.mark.parametrize("reuse_port", [False, True])
async def test_what_is_sent_to_it_arrives(reuse_port: bool) -> None:
    (listener,) = await open_listeners(HOST, 0, reuse_port=reuse_port, backlog=5)
    async with (
        listener,
        await trio.open_tcp_stream(HOST, port_of(listener)) as client,
        await listener.accept() as server,
    ):
        await client.send_all(b"x")
        assert await server.receive_some() == b"x"


async def test_a_port_can_be_shared_by_those_who_agree() -> None:
    (first,) = await open_listeners(HOST, 0, reuse_port=True)
    async with first:
        (second,) = await open_listeners(HOST, port_of(first), reuse_port=True)
        async with second:
            assert port_of(first) == port_of(second)
        with pytest.raises(OSError, match="in use") as caught:
            await open_listeners(HOST, port_of(first))
        assert caught.value.errno == errno.EADDRINUSE


async def test_a_port_that_is_taken_cannot_be_shared_later() -> None:
    """And nothing stays open."""
    (first,) = await open_listeners(HOST, 0)
    async with first:
        for reuse_port in (False, True):
            with pytest.raises(OSError, match="in use"):
                await open_listeners(HOST, port_of(first), reuse_port=reuse_port)


async def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(OSError, match=r"(?i)assign"):
        await open_listeners("203.0.113.1", 0, reuse_port=True)


async def test_systems_without_shared_ports_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(OSError, match="does not let processes share a port"):
        await open_listeners(HOST, 0, reuse_port=True)
