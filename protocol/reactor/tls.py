"""TLS contexts from certificate files, and handshakes on accepted connections."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from protocol.messages import Buffer
from protocol.sync.turns import PacedTurns

logger = logging.getLogger(__name__)

# How long a peer may take to read the alert that ends its handshake.
ALERT_SECONDS = 1.0
_CHUNK = 16384
_HANDSHAKES = PacedTurns("TLS handshakes")


class CertificateError(ValueError):
    """A file of certificates or keys is missing, or holds something else; the text names it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files.

    Attributes:
        certificate: the server's certificate, followed by those that lead up to a root.
        key: its private key, not encrypted.
        root_certificate: roots that clients' certificates must come from; with it a client without one is refused
            (mutual TLS). None asks clients for nothing.
    """

    certificate: Path
    key: Path
    root_certificate: Path | None = None


def server_context(files: TlsFiles, protocols: Sequence[str]) -> ssl.SSLContext:
    """A context for TLS 1.2 and later, without compression and renegotiation, that offers `protocols` by ALPN.

    It reads the files, and never again; a cipher for TLS 1.2 is one that HTTP/2 allows (RFC 9113, 9.2.2).

    Raises:
        CertificateError: a file cannot be read or is no PEM, or the key does not belong to the certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(protocols))
    for path in (files.certificate, files.key, files.root_certificate):
        if path is not None:
            _check_readable(path)
    try:
        # Without a function for the password, an encrypted key would make OpenSSL ask on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except _EncryptedKey:
        raise CertificateError(f"the private key '{files.key}' is encrypted, expected one that is not") from None
    except ssl.SSLError as error:
        raise CertificateError(
            f"'{files.certificate}' and '{files.key}' are no certificate and its private key in PEM: {_reason(error)}"
        ) from None
    if files.root_certificate is not None:
        try:
            context.load_verify_locations(files.root_certificate)
        except ssl.SSLError as error:
            raise CertificateError(
                f"'{files.root_certificate}' holds no certificate in PEM: {_reason(error)}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def server_stream(stream: trio.SocketStream, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    """TLS on a connection that has been accepted, before its handshake.

    A peer that closes without a TLS goodbye is no attack here: HTTP says itself where its messages end.
    """
    return trio.SSLStream(stream, context, server_side=True, https_compatible=True)


async def agreed_protocol(stream: trio.SSLStream[trio.SocketStream]) -> str | None:
    """Shake hands: what was agreed on by ALPN, empty without any; None where there is no agreement on TLS.

    The peer is told what was wrong, by a TLS alert: one without the certificate that it needs learns so.
    """
    transport = stream.transport_stream
    # Only what a handshake needs of it.
    stream.transport_stream = _PacedTransport(transport)  # type: ignore[assignment]
    try:
        await stream.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError) as error:
        logger.debug("a TLS handshake failed: %s", error.__cause__ or error)
        stream.transport_stream = transport
        await _send_alert(stream)
        return None
    finally:
        stream.transport_stream = transport
        _forget_handshake(stream)
    return stream.selected_alpn_protocol() or ""


class _PacedTransport:
    """A connection during its handshake: what is received is looked at when its turn has come. A signature takes most
    of a millisecond, and many clients come at once after a network's failure."""

    def __init__(self, transport: trio.SocketStream) -> None:
        self._transport = transport

    async def send_all(self, data: Buffer) -> None:
        await self._transport.send_all(data)

    async def receive_some(self, size: int | None = None) -> Buffer:
        received = await self._transport.receive_some(size)
        await _HANDSHAKES.wait()
        return received


async def _send_alert(stream: trio.SSLStream[trio.SocketStream]) -> None:
    """Send the alert that OpenSSL has made for a failed handshake; Trio leaves it where it is, if it shows that.

    What the peer has still sent is read for a moment and dropped: the kernel would else reset the connection, and the
    peer lose the alert.
    """
    outgoing = getattr(stream, "_outgoing", None)
    alert = b"" if outgoing is None else outgoing.read()
    if not alert:
        return
    transport = stream.transport_stream
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(ALERT_SECONDS):
        await transport.send_all(alert)
        await transport.send_eof()
        while await transport.receive_some(_CHUNK):
            pass


def _forget_handshake(stream: trio.SSLStream[trio.SocketStream]) -> None:
    """The stream keeps a method of its own for it, which would leave it, and OpenSSL's state, to the garbage collector.
    Where Trio has none of that name, it does."""
    with suppress(AttributeError):
        stream._handshook._afn = _no_handshake  # type: ignore[assignment]


async def _no_handshake() -> None:
    raise AssertionError("there is one for each connection")


class _EncryptedKey(Exception):
    pass


def _no_password() -> str:
    raise _EncryptedKey


def _check_readable(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise CertificateError(f"cannot read '{path}': {error.strerror or error}") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
