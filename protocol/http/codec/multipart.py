"""Forms of `multipart/form-data` (RFC 7578), read as they come: nothing of a part is held but its head. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias
from urllib.parse import unquote

from protocol.errors import InvalidArgument
from protocol.messages import Buffer

_MAX_HEAD = 8192
_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))', re.I | re.S)
_PARAMETER = re.compile(r';\s*([\w-]+\*?)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')
_PADDING = b" \t"


@dataclass(frozen=True, slots=True)
class Part:
    """The beginning of a part; `file_name` is None for a field that is no file."""

    name: str
    file_name: str | None = None


class PartEnd(Enum):
    """The end of a part."""

    END = auto()


# A part begins, has some bytes more, and ends.
Event: TypeAlias = Part | bytes | PartEnd


class _State(Enum):
    PREAMBLE = auto()
    DELIMITED = auto()
    HEAD = auto()
    CONTENT = auto()
    EPILOGUE = auto()


def boundary_of(content_type: bytes) -> bytes:
    """Raises InvalidArgument: it is no such form."""
    found = _BOUNDARY.match(content_type.decode("latin-1"))
    if found is None:
        raise InvalidArgument(
            f"expected a form, 'multipart/form-data' with a boundary, got '{content_type.decode('latin-1'):.100}'"
        )
    return (found[1] or found[2]).encode("latin-1")


class FormReader:
    """Reads one form, piece by piece."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._rest = bytearray(b"\r\n")  # the first delimiter may be the first that comes
        self._state = _State.PREAMBLE

    @property
    def has_ended(self) -> bool:
        """All parts have come; what follows has no meaning."""
        return self._state is _State.EPILOGUE

    def feed(self, data: Buffer) -> Iterator[Event]:
        """What is in the next piece; to be taken whole. Raises InvalidArgument."""
        self._rest += data
        while True:
            match self._state:
                case _State.PREAMBLE | _State.CONTENT:
                    is_content = self._state is _State.CONTENT
                    content, is_whole = self._take_content()
                    if is_content and content:
                        yield content
                    if not is_whole:
                        return
                    if is_content:
                        yield PartEnd.END
                case _State.DELIMITED:
                    if not self._take_mark():
                        return
                case _State.HEAD:
                    part = self._take_head()
                    if part is None:
                        return
                    yield part
                case _State.EPILOGUE:
                    self._rest.clear()
                    return

    def _take_content(self) -> tuple[bytes, bool]:
        """What surely belongs to the part, and whether that is its end."""
        end = self._rest.find(self._delimiter)
        if end < 0:
            return self._take(max(len(self._rest) - len(self._delimiter) + 1, 0)), False
        content = self._take(end)
        del self._rest[: len(self._delimiter)]
        self._state = _State.DELIMITED
        return content, True

    def _take_mark(self) -> bool:
        """What stands behind a delimiter; returns whether that has come."""
        rest = bytes(self._rest[:_MAX_HEAD]).lstrip(_PADDING)
        if len(rest) < 2 and len(self._rest) < _MAX_HEAD:
            return False
        if rest.startswith(b"--"):
            self._state = _State.EPILOGUE
        elif rest.startswith(b"\r\n"):
            self._state = _State.HEAD
            del self._rest[: self._rest.index(b"\r\n")]
        else:
            raise InvalidArgument("the form is damaged: a boundary is followed by neither a line's end nor '--'")
        return True

    def _take_head(self) -> Part | None:
        end = self._rest.find(b"\r\n\r\n", 0, _MAX_HEAD)
        if end < 0:
            if len(self._rest) >= _MAX_HEAD:
                raise InvalidArgument(f"the head of a part of the form has more than {_MAX_HEAD} bytes")
            return None
        head = self._take(end).decode("utf-8", "replace")
        del self._rest[:4]
        # The content's delimiter may follow at once: its line's end is that of the head.
        self._state = _State.CONTENT
        return _part(head)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken


def _part(head: str) -> Part:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() != "content-disposition":
            continue
        found = {key.lower(): quoted or plain for key, quoted, plain in _PARAMETER.findall(value)}
        if "name" in found:
            return Part(_unescaped(found["name"]), _file_name(found))
    raise InvalidArgument("a part of the form has no name")


def _file_name(found: dict[str, str]) -> str | None:
    if "filename*" in found:
        charset, _, text = found["filename*"].partition("'")
        if charset.lower() == "utf-8":
            return unquote(text.partition("'")[2])
    return _unescaped(found["filename"]) if "filename" in found else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text).replace("%22", '"')
