"""TLS contexts from files, and what is said of files that are wrong."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from protocol.reactor.tls import CertificateError, TlsFiles, server_context


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> TlsFiles:
    """A server's certificate for 127.0.0.1, its key, and the root that signed it."""
    issued = authority.issue_cert("127.0.0.1")
    certificate, key, root = (tmp_path / name for name in ("cert.pem", "key.pem", "root.pem"))
    for pem in issued.cert_chain_pems:
        pem.write_to_path(certificate, append=True)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(root)
    return TlsFiles(certificate, key, root)


def test_a_context_for_a_server(files: TlsFiles) -> None:
    """No older protocol than TLS 1.2, no compression; clients need a certificate where a root is given."""
    context = server_context(files, ("h2", "http/1.1"))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_COMPRESSION
    assert all("GCM" in cipher["name"] or "CHACHA20" in cipher["name"] for cipher in context.get_ciphers())
    open_to_all = server_context(TlsFiles(files.certificate, files.key), ())
    assert open_to_all.verify_mode is ssl.CERT_NONE


def test_files_that_are_missing(files: TlsFiles, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    for wrong in (
        TlsFiles(missing, files.key),
        TlsFiles(files.certificate, missing),
        TlsFiles(files.certificate, files.key, missing),
    ):
        with pytest.raises(CertificateError, match=r"cannot read '.*missing\.pem': No such file or directory"):
            server_context(wrong, ())


def test_files_that_are_something_else(files: TlsFiles, authority: trustme.CA, tmp_path: Path) -> None:
    """A key for another certificate, no PEM at all, a key that is encrypted."""
    other = tmp_path / "other.pem"
    authority.issue_cert("other").private_key_pem.write_to_path(other)
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    for wrong in (
        TlsFiles(files.certificate, other),
        TlsFiles(nothing, files.key),
        TlsFiles(files.certificate, nothing),
    ):
        with pytest.raises(CertificateError, match="are no certificate and its private key in PEM: "):
            server_context(wrong, ())
    with pytest.raises(CertificateError, match=r"nothing\.pem' holds no certificate in PEM: "):
        server_context(TlsFiles(files.certificate, files.key, nothing), ())


def test_an_encrypted_key(files: TlsFiles, tmp_path: Path) -> None:
    """Nobody is there to type its password."""
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(CertificateError, match=r"locked\.pem' is encrypted, expected one that is not"):
        server_context(TlsFiles(files.certificate, locked), ())
