"""TLS and mutual TLS with real clients, and what is turned away."""

from __future__ import annotations

import dataclasses
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest
import trio
import trio.testing
import trustme
from tritonclient.utils import InferenceServerException

from protocol.grpc.settings import ALPN_PROTOCOL, ConnectionLimits
from protocol.reactor.tls import TlsFiles, server_context
from tests.protocol.grpc.served import LOCAL, SMALL, Served, serving, tensor, wire_request


@dataclass
class Files:
    """Certificates as an operator has them; `stranger` is one that nobody vouches for."""

    root: Path
    certificate: Path
    key: Path
    client_certificate: Path
    client_key: Path
    stranger_certificate: Path
    stranger_key: Path

    @property
    def server(self) -> TlsFiles:
        return TlsFiles(self.certificate, self.key)

    @property
    def mutual(self) -> TlsFiles:
        return TlsFiles(self.certificate, self.key, self.root)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()

    def write(name: str, issuer: trustme.CA, identity: str) -> tuple[Path, Path]:
        issued = issuer.issue_cert(identity)
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return certificate, key

    root = folder / "root.pem"
    authority.cert_pem.write_to_path(str(root))
    return Files(
        root,
        *write("server", authority, "127.0.0.1"),
        *write("client", authority, "client@example.org"),
        *write("stranger", trustme.CA(), "stranger@example.org"),
    )


def with_tls(tls: TlsFiles, limits: ConnectionLimits = ConnectionLimits()) -> Any:  # noqa: B008 (frozen)
    return serving(dataclasses.replace(LOCAL, tls=server_context(tls, (ALPN_PROTOCOL,)), limits=limits))


def client_options(files: Files, name: str = "") -> dict[str, str]:
    """Those of NVIDIA's client; `name` is whose certificate it shows."""
    options: dict[str, Any] = {"ssl": True, "root_certificates": str(files.root)}
    if name:
        options["certificate_chain"] = str(getattr(files, f"{name}_certificate"))
        options["private_key"] = str(getattr(files, f"{name}_key"))
    return options


def infer(client: Any) -> Any:
    return client.infer("echo", [tensor(SMALL)]).as_numpy("x")


async def test_infer_over_tls(files: Files) -> None:
    served: Served
    async with with_tls(files.server) as served:
        found = await served.run(infer, **client_options(files))
        assert found.tolist() == SMALL.tolist()


@pytest.mark.slow
async def test_large_tensors_over_tls(files: Files) -> None:
    served: Served
    async with with_tls(files.server) as served:
        array = np.random.default_rng(1).random(2_000_000, dtype=np.float32)
        found = await served.run(
            lambda client: client.infer("echo", [tensor(array)]).as_numpy("x"), **client_options(files)
        )
        assert np.array_equal(found, array)


def fails(client: Any) -> str:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("echo", [tensor(SMALL)], client_timeout=20)
    return str(caught.value.status())


async def test_mutual_tls_lets_in_who_is_vouched_for(files: Files) -> None:
    served: Served
    async with with_tls(files.mutual) as served:
        assert (await served.run(infer, **client_options(files, "client"))).tolist() == SMALL.tolist()


@pytest.mark.parametrize("name", ["", "stranger"])
async def test_mutual_tls_turns_others_away(name: str, files: Files) -> None:
    served: Served
    async with with_tls(files.mutual) as served:
        assert await served.run(fails, **client_options(files, name)) == "StatusCode.UNAVAILABLE"
        assert served.core.requests == []


async def test_a_client_without_tls_is_turned_away(files: Files) -> None:
    served: Served
    async with with_tls(files.server) as served:
        assert await served.run(fails) == "StatusCode.UNAVAILABLE"
        assert (await served.run(infer, **client_options(files))).tolist() == SMALL.tolist()


def alpn_of(address: str, root: Path, protocols: list[str]) -> Callable[[], tuple[Any, bytes]]:
    """Shake hands, then give what was negotiated and what comes then."""

    def connect() -> tuple[Any, bytes]:
        context = ssl.create_default_context(cafile=str(root))
        if protocols:
            context.set_alpn_protocols(protocols)
        host, port = address.split(":")
        with (
            socket.create_connection((host, int(port))) as plain,
            context.wrap_socket(plain, server_hostname=host) as tls,
        ):
            tls.settimeout(20)
            return tls.selected_alpn_protocol(), tls.recv(100)

    return connect


async def test_http_2_must_be_negotiated(files: Files) -> None:
    """Others are closed after the handshake, before a byte of HTTP."""
    served: Served
    async with with_tls(files.server) as served:
        protocol, greeting = await trio.to_thread.run_sync(alpn_of(served.address, files.root, ["http/1.1", "h2"]))
        assert (protocol, greeting[3]) == ("h2", 4)  # SETTINGS
        assert await trio.to_thread.run_sync(alpn_of(served.address, files.root, [])) == (None, b"")
        assert await trio.to_thread.run_sync(alpn_of(served.address, files.root, ["http/1.1"])) == (None, b"")


def test_old_versions_of_tls_are_refused(files: Files) -> None:
    """A client that only has them cannot be tried here: OpenSSL refuses them on its side as well."""
    assert server_context(files.server, (ALPN_PROTOCOL,)).minimum_version is ssl.TLSVersion.TLSv1_2


async def test_a_peer_that_does_not_shake_hands_is_closed(files: Files) -> None:
    limits = ConnectionLimits(handshake_timeout=0.2)
    served: Served
    async with with_tls(files.server, limits) as served:
        host, port = served.address.split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            assert await stream.receive_some() == b""


async def test_stopping_finishes_calls_over_tls(files: Files) -> None:
    served: Served
    async with with_tls(files.server) as served:
        credentials = grpc.ssl_channel_credentials(files.root.read_bytes())
        channel = grpc.secure_channel(served.address, credentials)
        future = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(
            wire_request("wait").SerializeToString()
        )
        await served.core.came.wait()
        served.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.05)
        served.core.gate.set()
        assert await trio.to_thread.run_sync(future.result, 30)
        await served.has_ended.wait()
        await trio.to_thread.run_sync(channel.close)
