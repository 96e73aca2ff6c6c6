"""Links to results: who has one may read that result until it expires, without a key. Pure.

A link is signed, not kept: it holds as long as the secret of the store does, and its job.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass

from protocol.errors import Forbidden, InvalidArgument

# That a link may be asked for, as object stores have it.
MOST_SECONDS = 7 * 86_400


@dataclass(frozen=True, slots=True)
class ResultLink:
    """What a link leads to: the result of a job, or of one of its items, until a time in seconds since the epoch."""

    job_id: str
    item: int | None
    expires: int


class LinkExpired(InvalidArgument):
    """The link was right, and is not any more."""


def sign(secret: bytes, link: ResultLink) -> str:
    item = "" if link.item is None else str(link.item)
    signed = f"result\n{link.job_id}\n{item}\n{link.expires}".encode("utf-8", "surrogatepass")
    return base64.urlsafe_b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode().rstrip("=")


def check(secret: bytes, link: ResultLink, signature: str, now: float) -> None:
    """Tells nothing of jobs to who has no right link.

    Raises:
        Forbidden: it was not signed by this secret.
        LinkExpired: it was, and its time is over.
    """
    if not hmac.compare_digest(sign(secret, link).encode(), signature.encode("utf-8", "surrogatepass")):
        raise Forbidden("this link to a result is not valid: it must be used as it was given")
    if link.expires <= now:
        raise LinkExpired("this link to a result has expired: ask for another one with the key that made the job")
