"""HPACK decoding of request headers, with a cache by header block.

The header blocks of a client's calls are mostly the same few bytes: references into HPACK's dynamic table. What such a
block decodes to depends on the table alone, so it is cached until the table changes. Source: RFC 7541.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.utilities import HeaderValidationFlags, validate_headers
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.hpack import Decoder
from hpack.table import HeaderTable

from protocol.http2.header_table import SmallHeaderTable

Headers = Sequence[tuple[bytes, bytes]]
T = TypeVar("T")

# What a peer may make us keep: so many blocks, none of them nor what it was decoded to larger than this.
_MAX_KEPT = 32
_MAX_KEPT_SIZE = 256
_MAX_KEPT_HEADERS_SIZE = 4096

_OF_REQUEST = HeaderValidationFlags(is_client=False, is_trailer=False, is_response_header=False, is_push_promise=False)
_OF_TRAILERS = _OF_REQUEST._replace(is_trailer=True)


class MalformedHeadersError(ProtocolError):
    """Headers that are invalid in a request or its trailers: a stream error, not a connection error (RFC 9113,
    8.1.1)."""


class _WatchedTable(SmallHeaderTable):
    """An HPACK table that records whether it has changed."""

    has_changed = False

    def add(self, name: bytes, value: bytes) -> None:
        self.has_changed = True
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return super().maxsize

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        self.has_changed = True
        HeaderTable.maxsize.fset(self, size)  # type: ignore[attr-defined]  # a property


class RequestHeaders(Generic[T]):
    """`interpret` makes a request of its headers, and `refuse` makes one of the error where they are malformed.
    `max_size` bounds the decoded size of a block, with 32 bytes for each header; a larger one is a connection error,
    since the table is out of step then. `kept` is the cache: requests by their header blocks."""

    __slots__ = ("_decoder", "_interpret", "_refuse", "_table", "kept")

    def __init__(
        self, interpret: Callable[[Headers], T], max_size: int, refuse: Callable[[str], T] | None = None
    ) -> None:
        self._interpret = interpret
        self._refuse = refuse
        self._decoder = Decoder(max_header_list_size=max_size)
        self._table = self._decoder.header_table = _WatchedTable()
        self.kept: dict[bytes, T] = {}

    def request(self, block: bytes) -> T:
        """What the headers of a request mean.

        Raises:
            MalformedHeadersError: they are no request's, and nothing takes its place.
            DenialOfServiceError: they are far too many.
            ProtocolError: they cannot be decoded.
        """
        found = self.kept.get(block)
        if found is None:
            headers = self._decoded(block)
            try:
                headers = _checked(headers, _OF_REQUEST)
            except MalformedHeadersError as error:
                if self._refuse is None:
                    raise
                return self._refuse(str(error))
            found = self._interpret(headers)
            if len(block) <= _MAX_KEPT_SIZE and not self._table.has_changed and _is_short(headers):
                if len(self.kept) >= _MAX_KEPT:
                    self.kept.clear()
                self.kept[block] = found
        return found

    def trailers(self, block: bytes) -> None:
        """Decode and check trailers.

        Raises:
            MalformedHeadersError, DenialOfServiceError, ProtocolError: as for `request`.
        """
        _checked(self._decoded(block), _OF_TRAILERS)

    def skip(self, block: bytes) -> None:
        """Decode headers of a stream that is gone; they may change the table."""
        self._decoded(block)

    def _decoded(self, block: bytes) -> Headers:
        self._table.has_changed = False
        try:
            headers = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise DenialOfServiceError(f"Oversized header block: {error}") from error
        except (HPACKError, IndexError, TypeError, UnicodeDecodeError) as error:
            # hpack names the place in memory of what it could not decode.
            raise ProtocolError(f"Error decoding header block: {str(error).partition(' from <memory')[0]}") from error
        if self._table.has_changed:
            self.kept.clear()
        return headers


def _is_short(headers: Headers) -> bool:
    return sum([len(name) + len(value) for name, value in headers]) <= _MAX_KEPT_HEADERS_SIZE


def _checked(headers: Headers, flags: HeaderValidationFlags) -> Headers:
    """As they are, without space around their values: gRPC's clients send it, and HTTP has it mean nothing (RFC 9110,
    5.5)."""
    try:
        return list(validate_headers(headers, flags))
    except ProtocolError:
        pass
    try:
        return list(validate_headers([(name, value.strip(b" \t")) for name, value in headers], flags))
    except ProtocolError as error:
        raise MalformedHeadersError(str(error)) from None
