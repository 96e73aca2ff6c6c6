"""Origin check against forged requests: whether a page of another origin has a browser send this one.

Where there are no keys, a browser adds nothing that such a page would not have: it may send what changes the server,
though it may not read the answer. Browsers say whose page it is; programs that are none say nothing. Sources: Fetch
Metadata Request Headers (`Sec-Fetch-Site`), RFC 6454 (`Origin`).
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import Forbidden
from protocol.http.console.host_check import is_own_host
from protocol.http.exchange import header_text

_OWN_SITES = ("same-origin", "none")  # none: a person has entered the address


def is_foreign(headers: Mapping[bytes, bytes], names: frozenset[str]) -> bool:
    """`names` as for `is_own_host`: a foreign page may have a name of its own lead to this server."""
    site, origin = header_text(headers, "sec-fetch-site"), header_text(headers, "origin")
    if site is None and origin is None:
        return False
    host = header_text(headers, "host") or ""
    if not is_own_host(host, names):
        return True
    if site is not None:
        return site not in _OWN_SITES
    return (origin or "").partition("://")[2].lower() != host.lower()


def refuse_foreign_page(headers: Mapping[bytes, bytes], names: frozenset[str]) -> None:
    """Raises Forbidden."""
    if is_foreign(headers, names):
        origin = header_text(headers, "origin") or "unknown"
        raise Forbidden(
            f"a page of another origin ({origin[:100]}) may not change this server; expected its own console, at an "
            f"address, localhost, or a name that --console-host gives"
        )
