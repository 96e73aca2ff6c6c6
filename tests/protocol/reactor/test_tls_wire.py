"""TLS on a connection: the handshake, messages of every size, and what a connection keeps of them."""

from __future__ import annotations

import ctypes
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme

from protocol.reactor.tls import TlsFiles, server_context
from protocol.reactor.tls_wire import TlsWire

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    file: Path = tmp_path_factory.mktemp("tls") / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(file)
    return server_context(TlsFiles(file, file), ("h2", "http/1.1"))


@pytest.fixture
def client(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["http/1.1"])
    return context


async def in_thread(call: Callable[..., object], *args: object) -> object:
    return await trio.to_thread.run_sync(partial(call, *args))


@asynccontextmanager
async def connected(server: ssl.SSLContext, client: ssl.SSLContext) -> AsyncIterator[tuple[TlsWire, ssl.SSLSocket]]:
    """Hands are shaken; the client blocks, and keeps nothing of what it has sent or received."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        near = socket.create_connection(listener.socket.getsockname()[:2])
        wire = TlsWire(await listener.accept(), server)
    peer = client.wrap_socket(near, server_hostname="127.0.0.1", do_handshake_on_connect=False)
    with peer:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_thread, peer.do_handshake)
                assert await wire.shake_hands() == "http/1.1"
            yield wire, peer
        finally:
            await wire.aclose()


def receive_all(peer: ssl.SSLSocket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        more = peer.recv(size - len(received))
        assert more, "it ends too early"
        received += more
    return bytes(received)


def say_goodbye(peer: ssl.SSLSocket) -> None:
    """And wait for none."""
    peer.setblocking(False)
    with suppress(ssl.SSLWantReadError):
        peer.unwrap()


def never() -> None:
    raise AssertionError("the peer has read all the time")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [1, 16_384, 16_385, 3 * MEGABYTE])
async def test_messages_of_every_size(
    size: int, version: ssl.TLSVersion, server: ssl.SSLContext, client: ssl.SSLContext
) -> None:
    client.minimum_version = client.maximum_version = version
    sent, answer = os.urandom(size), os.urandom(size)
    async with connected(server, client) as (wire, peer):
        assert peer.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, peer.sendall, sent)
            received = bytearray()
            while len(received) < size:
                received += await wire.receive(65536)
        assert received == sent
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, peer.sendall, sent)
            with memoryview(bytearray(size)) as memory:
                count = 0
                while count < size:
                    count += await wire.receive_into(memory[count:])
                assert memory == sent
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                assert await in_thread(receive_all, peer, 2 * size) == answer * 2

            nursery.start_soon(read)
            assert await wire.send(answer, 60, never)
            assert await wire.send_parts([answer[: size // 2], answer[size // 2 :]], 60, never)


async def test_a_record_that_is_read_in_parts(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """What OpenSSL holds of it no socket tells of."""
    async with connected(server, client) as (wire, peer):
        await in_thread(peer.sendall, b"abcdef")
        assert [await wire.receive(4), await wire.receive(4)] == [b"abcd", b"ef"]


async def test_both_directions_at_once(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    there, back = os.urandom(2 * MEGABYTE), os.urandom(2 * MEGABYTE)
    async with connected(server, client) as (wire, peer):

        async def exchange() -> None:
            await in_thread(peer.sendall, there)
            assert await in_thread(receive_all, peer, len(back)) == back

        async def receive() -> None:
            received = b""
            while len(received) < len(there):
                received += await wire.receive(65536)
            assert received == there

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(exchange)
                nursery.start_soon(receive)
                assert await wire.send(back, 60, never)


async def test_a_client_that_reads_nothing_is_given_up(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    told: list[bool] = []
    async with connected(server, client) as (wire, _):
        assert not await wire.send(bytes(32 * MEGABYTE), 0.1, lambda: told.append(True))
    assert told == [True]


@pytest.mark.parametrize("says_goodbye", [True, False])
async def test_a_client_that_goes(says_goodbye: bool, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async with connected(server, client) as (wire, peer):
        if says_goodbye:
            say_goodbye(peer)
        peer.close()
        assert await wire.receive(100) == b""
        assert await wire.receive_into(memoryview(bytearray(100))) == 0


async def test_an_answer_to_a_client_that_has_said_goodbye(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """It has ended its own direction only."""
    async with connected(server, client) as (wire, peer):
        say_goodbye(peer)
        assert await wire.receive(100) == b""
        assert not wire.is_lost
        assert await wire.send(b"answer", 60, never)


async def test_a_connection_that_is_cut_off(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Its task sees the end; so does one that sends."""
    async with connected(server, client) as (wire, _):
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                assert await wire.receive(100) == b""

            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            wire.abort()
        assert not await wire.send(b"answer", 60, never)
        assert wire.is_lost
        assert wire.peer == ""


@pytest.mark.parametrize(
    ("data", "alert"),
    [(b"GET / HTTP/1.1\r\n\r\n", b""), (b"\x16\x03\x01\x00\x05hello", b"\x15\x03"), (b"", b"\x15\x03")],
)
async def test_whoever_speaks_no_tls(data: bytes, alert: bytes, server: ssl.SSLContext) -> None:
    """OpenSSL says nothing to HTTP."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        peer = await trio.open_tcp_stream(*listener.socket.getsockname()[:2])
        wire = TlsWire(await listener.accept(), server)
    async with peer:
        if data:
            await peer.send_all(data)
        else:
            await peer.send_eof()
        async with trio.open_nursery() as nursery:

            async def told() -> None:
                received = b"".join([part async for part in peer])
                assert received[:2] == alert
                await peer.aclose()

            nursery.start_soon(told)
            assert await wire.shake_hands() is None
            assert wire.is_lost
            await wire.aclose()


async def test_a_client_that_has_gone_before_the_handshake(server: ssl.SSLContext) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        peer = await trio.open_tcp_stream(*listener.socket.getsockname()[:2])
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        accepted = await listener.accept()
    await peer.aclose()
    wire = TlsWire(accepted, server)
    assert await wire.shake_hands() is None
    await wire.aclose()


async def test_nothing_is_kept_of_large_messages(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """As memory buffers would, at the size of the largest that they have had."""
    heap = allocated()
    if heap is None:
        pytest.skip("the C library does not tell what is allocated (mallinfo2)")
    large = bytes(4 * MEGABYTE)

    async def exchange(wire: TlsWire, peer: ssl.SSLSocket, data: bytes) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, peer.sendall, data)
            left = len(data)
            while left:
                left -= len(await wire.receive(65536))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, receive_all, peer, len(data))
            assert await wire.send(data, 60, never)

    async with connected(server, client) as (wire, peer):
        await exchange(wire, peer, large)  # what the first one makes is not the connection's
        await exchange(wire, peer, b"small")
    async with connected(server, client) as (wire, peer):
        await exchange(wire, peer, b"small")
        before = allocated()
        await exchange(wire, peer, large)
        await exchange(wire, peer, b"small")
        after = allocated()
    assert before is not None
    assert after is not None
    assert after - before < 64 * 1024


def allocated() -> int | None:
    """Bytes that this process has been given by malloc."""

    class Mallinfo(ctypes.Structure):
        _fields_ = [
            *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks")),
            *((name, ctypes.c_size_t) for name in ("fsmblks", "uordblks", "fordblks", "keepcost")),
        ]

    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = Mallinfo
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)
