"""Input of batches: JSON lines, each with a request, read and checked as they come. Pure.

A line is checked as far as it can be without its model: what is wrong beyond that fails the line, not the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from protocol.errors import Internal, InvalidArgument
from protocol.jobs.batches.batch import LineError
from protocol.messages import Buffer

MAX_LINES = 50_000
# Errors that are told of one batch.
MAX_ERRORS = 100
MAX_CUSTOM_ID = 512

_SPACE = b" \t\r\n"


class _Body(msgspec.Struct):
    model: str | None | UnsetType = UNSET


class _Line(msgspec.Struct):
    custom_id: str | UnsetType = UNSET
    method: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    body: _Body | UnsetType = UNSET


class _Request(msgspec.Struct):
    body: msgspec.Raw


_read_line = msgspec.json.Decoder(_Line).decode
_read_request = msgspec.json.Decoder(_Request).decode
_FIELDS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file: where its bytes are, and the client's name for it."""

    start: int
    size: int
    custom_id: str


class InputReader:
    """Reads the input of one batch, in pieces.

    Attributes:
        lines: those that have come; with errors they have no meaning.
        errors: what is wrong, the first of it.
        model: that of all lines, as the client names it; None where they name none.
    """

    def __init__(self, endpoint: str, *, max_line_size: int, max_lines: int = MAX_LINES) -> None:
        self.lines: list[Line] = []
        self.errors: list[LineError] = []
        self.model: str | None = None
        self._endpoint = endpoint
        self._max_line_size = max_line_size
        self._max_lines = max_lines
        self._number = 0
        self._start = 0  # of the line that comes
        self._parts: list[bytes] = []
        self._size = 0
        self._places: dict[str, int] = {}

    @property
    def is_done(self) -> bool:
        """No more need be read."""
        return len(self.errors) >= MAX_ERRORS or len(self.lines) > self._max_lines

    def feed(self, data: bytes) -> None:
        """The next piece."""
        first = 0
        while not self.is_done:
            end = data.find(b"\n", first)
            if end < 0:
                self._keep(data[first:])
                return
            self._keep(data[first : end + 1])
            self._end_line()
            first = end + 1

    def finish(self) -> None:
        """All has come."""
        if self._size and not self.is_done:
            self._end_line()
        if len(self.lines) > self._max_lines:
            text = f"The batch has more than {self._max_lines} requests, which is the most that one can have."
            self.errors = [LineError("too_many_tasks", text)]
        elif not (self.lines or self.errors):
            self.errors.append(LineError("empty_file", "The input file has no requests."))
        self._places.clear()

    def _keep(self, part: bytes) -> None:
        """A part of a line, unless that is too long: then it is counted only."""
        self._size += len(part)
        if self._size <= self._max_line_size:
            self._parts.append(part)
        else:
            self._parts.clear()

    def _end_line(self) -> None:
        text = b"".join(self._parts)
        start, size = self._start, self._size
        self._start += size
        self._parts.clear()
        self._size = 0
        self._number += 1
        if size > self._max_line_size:
            self._fail("line_too_long", f"This line has more than {self._max_line_size} bytes.")
        elif text.strip(_SPACE):
            self._check(text, start)

    def _check(self, text: bytes, start: int) -> None:
        try:
            line = _read_line(text)
        except msgspec.ValidationError as error:
            self._fail("invalid_type", f"This line has a field of the wrong type: {error}")
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._fail("invalid_json_line", "This line is not parseable as valid JSON.")
            return
        for name in _FIELDS:
            if getattr(line, name) is UNSET:
                self._fail("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
                return
        assert isinstance(line.custom_id, str)
        if self._check_custom_id(line.custom_id) and self._check_target(line):
            self.lines.append(Line(start, len(text), line.custom_id))

    def _check_custom_id(self, custom_id: str) -> bool:
        if len(custom_id) > MAX_CUSTOM_ID:
            self._fail("invalid_custom_id", f"custom_id has more than {MAX_CUSTOM_ID} characters.", "custom_id")
            return False
        first = self._places.setdefault(custom_id, self._number)
        if first != self._number:
            text = f"The custom_id '{custom_id:.64}' is that of line {first}, too. It must be unique in a batch."
            self._fail("duplicate_custom_id", text, "custom_id")
            return False
        return True

    def _check_target(self, line: _Line) -> bool:
        if line.method != "POST":
            self._fail("invalid_method", f"The method has to be POST, got '{line.method:.20}'.", "method")
            return False
        if line.url != self._endpoint:
            text = f"The url '{line.url:.100}' does not match the batch's endpoint '{self._endpoint}'."
            self._fail("url_mismatch", text, "url")
            return False
        assert isinstance(line.body, _Body)
        model = None if line.body.model is UNSET else line.body.model
        if not self.lines:
            self.model = model
        elif model != self.model:
            text = f"The model {_shown(model)} is not that of the lines before, {_shown(self.model)}."
            self._fail("model_mismatch", text, "body.model")
            return False
        return True

    def _fail(self, code: str, message: str, param: str | None = None) -> None:
        self.errors.append(LineError(code, message, self._number, param))


def body_of(line: Buffer) -> Buffer:
    """The body of a line that was checked. Raises Internal where it is none, InvalidArgument where it nests too
    deeply."""
    try:
        return memoryview(_read_request(line).body)
    except RecursionError:
        raise InvalidArgument("what the line holds nests too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Internal(f"the line of the batch's input cannot be read any more: {error}") from None


class LineRequest(msgspec.Struct, array_like=True, frozen=True):
    """What the item of a line has as its request: where the line is, and what is to be done with it. `model` is the
    core's name."""

    endpoint: str
    model: str
    payload: str
    start: int
    size: int


encode_line_request = msgspec.msgpack.Encoder().encode
_read_line_request = msgspec.msgpack.Decoder(LineRequest).decode


def decode_line_request(data: Buffer) -> LineRequest:
    """Raises Internal."""
    try:
        return _read_line_request(data)
    except msgspec.DecodeError as error:
        raise Internal(f"the request that was kept cannot be read: {error}") from None


def _shown(model: str | None) -> str:
    return "none" if model is None else f"'{model:.100}'"
