"""Files that a server reads before it loads its models, which may take long: certificates, and the keys of clients."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.access.keys_file import KeysFile
from protocol.reactor.tls import CertificateError
from trioton.edges import tls_contexts
from trioton.settings import Settings
from trioton.start_checks import StartError


@dataclass(frozen=True, slots=True)
class StartFiles:
    """What the edges need of files: TLS by the words of the services, and the keys of clients."""

    tls: Mapping[str, ssl.SSLContext]
    keys: KeysFile | None

    @classmethod
    def read(cls, settings: Settings) -> StartFiles:
        """Blocks. Raises StartError."""
        try:
            tls = tls_contexts(settings)
        except CertificateError as error:
            raise StartError(str(error)) from None
        try:
            keys = None if settings.auth_keys_file is None else KeysFile(settings.auth_keys_file)
        except ValueError as error:
            raise StartError(f"--auth-keys-file: {error}") from None
        return cls(tls, keys)
