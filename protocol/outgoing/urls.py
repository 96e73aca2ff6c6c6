"""URLs that clients name: which ones can be asked at all, and what of which host. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin, urlsplit

PORTS = {"http": 80, "https": 443}
MAX_URL = 8192
# Characters about which programs that read URLs disagree.
_ODD = re.compile(r"[\x00-\x20\x7f\\]")
_KEPT = "%/:=&?~+!$,;'@()*[]"


class UrlError(Exception):
    """What a URL names cannot be asked for; the text says why, for the client that named it. `url` is what it named."""

    url = ""


@dataclass(frozen=True, slots=True)
class HttpUrl:
    """An http or https URL. `host` is in lower case and ASCII, an address in its usual form; `target` is path and
    query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """As the header Host has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> HttpUrl:
    """Raises UrlError: it is no such URL, or has a user's name or a password."""
    if len(text) > MAX_URL:
        raise UrlError(f"a URL has at most {MAX_URL} characters, this one has {len(text)}")
    if _ODD.search(text):
        raise UrlError("a URL has no spaces, backslashes or control characters")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UrlError(f"it is no URL: {error}") from None
    if parts.scheme not in PORTS:
        raise UrlError(f"expected an http or https URL, got '{parts.scheme:.20}'")
    if "@" in parts.netloc:
        raise UrlError("a URL with a user's name or a password is not taken")
    port = PORTS[parts.scheme] if port is None else port
    return HttpUrl(parts.scheme, normal_host(host), port, _target(parts))


def normal_host(host: str) -> str:
    """One form for each host. Raises UrlError."""
    host = host.rstrip(".")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        name = host.encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    if not name or not re.fullmatch(r"[a-z0-9._-]+", name):
        raise UrlError(f"'{host:.80}' is no name of a host")
    return name


def redirected(url: HttpUrl, location: str) -> HttpUrl:
    """Where an answer points to. Raises UrlError: to another host, or nowhere."""
    found = parse_url(urljoin(url.text, location))
    if found.host != url.host:
        raise UrlError("it was redirected to another host, which is not followed")
    return found


def _target(parts: SplitResult) -> str:
    query = f"?{parts.query}" if parts.query else ""
    return quote((parts.path or "/") + query, safe=_KEPT)
