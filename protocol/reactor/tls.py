"""TLS contexts from certificate files."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


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
