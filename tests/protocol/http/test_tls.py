"""HTTPS: HTTP/1.1 and HTTP/2 by ALPN, certificates of clients, and handshakes that fail."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h2.events
import httpx
import numpy as np
import pytest
import trio
import trio.testing
import trustme

from protocol.datatypes import DataType
from protocol.http.connections import ALPN_PROTOCOLS
from protocol.http.server import HttpSettings
from protocol.http.settings import ConnectionLimits
from protocol.reactor.tls import TlsFiles, server_context
from tests.protocol.http.conftest import Serve, Served
from tests.protocol.http.http2_client import Http2Client
from tests.protocol.http.wire import infer_body, read_outputs

LOOPBACK = HttpSettings(host="127.0.0.1", port=0)
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class Authority:
    """Signs the server's certificate, and those of clients that it knows."""

    ca: trustme.CA
    files: TlsFiles

    def settings(self, *, mutual: bool = False, **limits: Any) -> HttpSettings:
        files = self.files if mutual else replace(self.files, root_certificate=None)
        return replace(LOOPBACK, tls=server_context(files, ALPN_PROTOCOLS), connections=ConnectionLimits(**limits))

    def client(self, *protocols: str, signer: trustme.CA | None = None) -> ssl.SSLContext:
        """A client's context that trusts the server, with a certificate of its own from `signer`."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        if signer is not None:
            signer.issue_cert("client@example.org").configure_cert(context)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    ca = trustme.CA()
    folder: Path = tmp_path_factory.mktemp("tls")
    issued = ca.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    ca.cert_pem.write_to_path(folder / "root.pem")
    return Authority(ca, TlsFiles(folder / "server.pem", folder / "server.pem", folder / "root.pem"))


async def connect(server: Served, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    stream = trio.SSLStream(await server.connect(), context, server_hostname="127.0.0.1", https_compatible=True)
    await stream.do_handshake()
    return stream


@pytest.mark.parametrize("http2", [False, True])
async def test_requests_of_every_size(serve: Serve, authority: Authority, http2: bool) -> None:
    """httpx agrees with the server on the best that it can."""
    server = await serve(settings=authority.settings())
    array = np.random.default_rng(0).integers(0, 100, 300_000, np.int32)
    body, size = infer_body([("A", DataType.INT32, array, True)], parameters={"binary_data_output": True})
    url = f"https://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=url, verify=authority.client(), http2=http2, http1=not http2) as client:
        for _ in range(2):
            answer = await client.get("/v2/health/live")
            assert (answer.status_code, answer.http_version) == (200, "HTTP/2" if http2 else "HTTP/1.1")
        headers = {"inference-header-content-length": str(size), "accept-encoding": "identity"}
        answer = await client.post("/v2/models/echo/infer", content=body, headers=headers)
        split = int(answer.headers["inference-header-content-length"])
        assert np.array_equal(read_outputs(answer.content[:split], answer.content[split:])["OUT_A"], array)


@pytest.mark.parametrize(
    ("offered", "agreed"), [(("h2", "http/1.1"), "h2"), (("http/1.1",), "http/1.1"), (("other",), None), ((), None)]
)
async def test_what_is_agreed_on(
    serve: Serve, authority: Authority, offered: tuple[str, ...], agreed: str | None
) -> None:
    """Without an agreement it is HTTP/1.1."""
    server = await serve(settings=authority.settings())
    stream = await connect(server, authority.client(*offered))
    assert stream.selected_alpn_protocol() == agreed
    if agreed == "h2":
        assert (await Http2Client(stream).get("/v2/health/live"))[0] == 200
    else:
        await stream.send_all(LIVE)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")


async def test_clients_with_and_without_a_certificate(serve: Serve, authority: Authority) -> None:
    """Where a root is given, only those whose certificate comes from it."""
    server = await serve(settings=authority.settings(mutual=True))
    known = await connect(server, authority.client(signer=authority.ca))
    await known.send_all(LIVE)
    assert (await known.receive_some()).startswith(b"HTTP/1.1 200")
    for context, alert in (
        (authority.client(), "CERTIFICATE_REQUIRED"),
        (authority.client(signer=trustme.CA()), "UNKNOWN_CA"),
    ):
        stream = await connect(server, context)
        await stream.send_all(LIVE)
        with pytest.raises(trio.BrokenResourceError) as caught:  # TLS 1.3 tells the client after its own handshake
            await stream.receive_some()
        assert isinstance(caught.value.__cause__, ssl.SSLError)
        assert str(caught.value.__cause__.reason).endswith(alert)
    assert server.core.requests == []


@pytest.mark.parametrize("sent", [LIVE, b"\x16\x03\x01garbage", b""])
async def test_a_client_that_speaks_no_tls(serve: Serve, authority: Authority, sent: bytes) -> None:
    """It costs its own connection."""
    server = await serve(settings=authority.settings(header_timeout=0.2))
    stream = await server.connect()
    if sent:
        await stream.send_all(sent)
    with trio.fail_after(10):
        while await stream.receive_some():
            pass
    assert server.services.limits.counts() == ({} if sent else {("http", "header_timeout"): 1})
    stream_ = await connect(server, authority.client())
    await stream_.send_all(LIVE)
    assert (await stream_.receive_some()).startswith(b"HTTP/1.1 200")


async def test_old_versions_are_refused(serve: Serve, authority: Authority) -> None:
    server = await serve(settings=authority.settings())
    context = authority.client()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
        await connect(server, context)


@pytest.mark.slow
@pytest.mark.parametrize("http2", [False, True])
async def test_stopping_says_goodbye(serve: Serve, authority: Authority, http2: bool) -> None:
    server = await serve(settings=authority.settings())
    stream = await connect(server, authority.client("h2" if http2 else "http/1.1"))
    if http2:
        client = Http2Client(stream)
        await client.get("/v2/health/live")
        server.stop.set()
        await client.wait_for(h2.events.ConnectionTerminated)
    else:
        await stream.send_all(LIVE)
        await stream.receive_some()
        server.stop.set()
        assert await stream.receive_some() == b""
    await stream.aclose()
    with trio.fail_after(10):
        await server.ended.wait()


@pytest.mark.slow
async def test_stopping_does_not_wait_for_a_handshake(serve: Serve, authority: Authority) -> None:
    server = await serve(settings=authority.settings())
    stream = await server.connect()
    await stream.send_all(b"\x16\x03\x01")
    await trio.testing.wait_all_tasks_blocked()
    server.stop.set()
    with trio.fail_after(5):
        assert await stream.receive_some() == b""
        await stream.aclose()
        await server.ended.wait()


async def test_too_many_connections_are_just_closed(serve: Serve, authority: Authority) -> None:
    """A refusal in words would cost a handshake."""
    server = await serve(settings=authority.settings(max_connections=0))
    with pytest.raises(trio.BrokenResourceError):
        await connect(server, authority.client())
    assert server.services.limits.counts() == {("http", "max_connections"): 1}
