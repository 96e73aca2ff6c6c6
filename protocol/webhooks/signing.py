"""Signatures of webhooks, as Standard Webhooks 1.0 says: `v1`, HMAC-SHA256 over id, timestamp and body. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"
SECRET_BYTES = range(24, 65)
# While one secret takes another's place, receivers know either.
MOST_SECRETS = 4


def read_secret(text: str) -> bytes:
    """Raises ValueError; the text does not show the secret."""
    encoded = text.removeprefix(PREFIX)
    try:
        secret = base64.b64decode(encoded, validate=True) if encoded != text else b""
    except ValueError:
        secret = b""
    if len(secret) not in SECRET_BYTES:
        raise ValueError(f"expected {PREFIX} and {SECRET_BYTES.start} to {SECRET_BYTES.stop - 1} bytes in base64")
    return secret


def signature(secrets: Sequence[bytes], id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`: one signature by each secret."""
    signed = b"%b.%d.%b" % (id.encode(), timestamp, body)
    digests = [hmac.digest(secret, signed, hashlib.sha256) for secret in secrets]
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
