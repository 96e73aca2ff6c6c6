"""TLS of the gRPC edge. HTTP/2 must be negotiated by ALPN (RFC 9113, 3.3); older versions than TLS 1.2 are refused."""

from __future__ import annotations

import logging
import ssl

import trio

from protocol.grpc.settings import TlsSettings

logger = logging.getLogger(__name__)

ALPN_PROTOCOL = "h2"


class CertificateError(ValueError):
    """A file of certificates or keys is missing, or holds something else; the text names it."""


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Read the files; they are not looked at again.

    Raises:
        CertificateError: with the sentence for the operator.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN_PROTOCOL])
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        # A key that needs a password is refused, where OpenSSL would ask for it on the terminal.
        context.load_cert_chain(settings.certificate, settings.key, password="")
    except OSError as error:  # ssl.SSLError is one
        raise CertificateError(
            f"the server's certificate '{settings.certificate}' with key '{settings.key}' could not be loaded: "
            f"{_reason(error)}"
        ) from None
    if settings.requires_client_certificate:
        if settings.root_certificate is None:
            raise CertificateError("mutual TLS needs the certificate that vouches for clients, and none is given")
        try:
            context.load_verify_locations(settings.root_certificate)
        except OSError as error:
            raise CertificateError(
                f"the root certificate '{settings.root_certificate}' could not be loaded: {_reason(error)}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def secured(
    stream: trio.SocketStream, context: ssl.SSLContext, *, seconds: float
) -> trio.SSLStream[trio.SocketStream] | None:
    """The stream with TLS on it after the handshake; None, and closed, where there is none to be had in `seconds`."""
    # A peer that closes without a TLS goodbye is no attack here: HTTP/2 has its own ends of streams.
    tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
    is_good = False
    try:
        with trio.move_on_after(seconds):
            await tls.do_handshake()
            is_good = tls.selected_alpn_protocol() == ALPN_PROTOCOL
            if not is_good:
                logger.debug("closing a gRPC connection: TLS without ALPN for HTTP/2")
    except (trio.BrokenResourceError, ssl.SSLError) as error:
        logger.debug("closing a gRPC connection: %s", error.__cause__ or error)
    finally:
        if not is_good:
            await trio.aclose_forcefully(tls)
    return tls if is_good else None


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return error.strerror or str(error)
