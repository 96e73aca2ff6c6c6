"""Request ids of HTTP: the header by which a client names a request, or finds the name that was made for it. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

REQUEST_ID = b"x-request-id"
_USUAL_ID = re.compile(rb"[!-~]{1,128}")


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The client's own, if it is one that can be repeated in a header; else a new one."""
    given = headers.get(REQUEST_ID)
    return given.decode() if given is not None and _USUAL_ID.fullmatch(given) else secrets.token_hex(16)
