"""Hosts that the server may ask for its clients: those that the operator names, and public addresses. Pure.

A name may lead to any address, so it is the address that decides: it must be a public one, unless the host was named.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.outgoing.urls import PORTS, HttpUrl, UrlError, normal_host

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

ANY = "*"
# All that is routed of IPv6, and IPv4 within it, for networks that translate.
_ROUTED = ipaddress.ip_network("2000::/3")
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
# Public by its number, and yet a cloud's own: Azure's metadata.
_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})


@dataclass(frozen=True, slots=True)
class HostRule:
    """One host, all that end with `suffix`, or, where both are empty, any; on `port`, or on the usual ones if that is
    0."""

    host: str = ""
    suffix: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> HostRule:
        """`<host>`, `*.<domain>` or `*`, perhaps with `:<port>`. Raises ValueError."""
        name, colon, number = text.rpartition(":")
        if not colon or text.endswith("]") or ":" in name.partition("]")[2] or (":" in name and name[0] != "["):
            name, number = text, ""
        elif not number.isdecimal() or not 0 < int(number) < 65536:
            raise ValueError("expected a host, *.<domain> or *, perhaps with :<port>")
        port = int(number or 0)
        if name == ANY:
            return cls(port=port)
        try:
            host = normal_host(name.removeprefix("*.").removeprefix("[").removesuffix("]"))
        except UrlError:
            raise ValueError("expected a host, *.<domain> or *, perhaps with :<port>; a host, not a URL") from None
        return cls("", f".{host}", port) if name.startswith("*.") else cls(host, "", port)

    def takes(self, url: HttpUrl) -> bool:
        if url.port != (self.port or PORTS[url.scheme]):
            return False
        return url.host == self.host if self.host else url.host.endswith(self.suffix)


class AllowedHosts:
    """The rules that one flag of a server gives; errors name it."""

    def __init__(self, rules: Sequence[HostRule], flag: str) -> None:
        self._rules = rules
        self._flag = flag

    def check(self, url: HttpUrl) -> None:
        """Raises UrlError: this host is not asked, or not on this port."""
        if not any(rule.takes(url) for rule in self._rules):
            raise UrlError(
                f"'{url.host:.80}', port {url.port}, is none of the hosts that this server asks ({self._flag})"
            )

    def usable(self, url: HttpUrl, addresses: Sequence[str]) -> list[str]:
        """Those of a host's addresses that may be asked.

        Raises:
            UrlError: none may.
        """
        is_named = self.is_named(url)
        found = [each for each in addresses if is_named or is_public(each)]
        if not found:
            raise UrlError(
                f"'{url.host:.80}' has no public address; the server asks others only if the host is named in "
                f"{self._flag}"
            )
        return found

    def is_named(self, url: HttpUrl) -> bool:
        """Whether a rule is for this host alone."""
        return any(rule.host and rule.takes(url) for rule in self._rules)


def is_public(text: str) -> bool:
    """Whether an address is nobody's own: neither private, nor of this machine or link, nor a cloud's metadata."""
    address: _Address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        address = _inner(address)
        if isinstance(address, ipaddress.IPv6Address) and address not in _ROUTED:
            return False
    return address.is_global and not address.is_multicast and address not in _METADATA


def _inner(address: ipaddress.IPv6Address) -> _Address:
    """The IPv4 address that is meant by one of IPv6, where there is one."""
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
