"""`TritonError` and `TritonModelException`, and the conversion of a model's exceptions to error texts."""

from __future__ import annotations

import enum
import importlib
import os
import sysconfig
import traceback
from types import TracebackType

from .arguments import to_text

_HERE = os.path.dirname(os.path.abspath(__file__))
# Frames of these are ours, not the model's: how it was called, and how its file was imported.
_OWN_FOLDERS = (_HERE, "<frozen importlib", os.path.dirname(importlib.__file__))
# Frames of these are of no interest to a client, where the model has some of its own.
_LIBRARIES = (
    f"{_HERE}{os.sep}",
    *{f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)
# What of an exception crosses to the server, in characters.
LONGEST_TEXT = 1 << 16
LONGEST_TRACEBACK = 1 << 18
# A class's name as Python has it, whatever its metaclass says.
_name_of = type.__dict__["__name__"].__get__


class TritonErrorCode(enum.IntEnum):
    """Names and order are those of `frames.ERROR_KINDS`."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonModelException(Exception):
    """A rule of `triton_python_backend_utils` was broken, or something asked for that does not exist."""


class TritonError:
    """What a response carries in place of tensors."""

    UNKNOWN = TritonErrorCode.UNKNOWN
    INTERNAL = TritonErrorCode.INTERNAL
    NOT_FOUND = TritonErrorCode.NOT_FOUND
    INVALID_ARG = TritonErrorCode.INVALID_ARG
    UNAVAILABLE = TritonErrorCode.UNAVAILABLE
    UNSUPPORTED = TritonErrorCode.UNSUPPORTED
    ALREADY_EXISTS = TritonErrorCode.ALREADY_EXISTS
    CANCELLED = TritonErrorCode.CANCELLED

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: TritonErrorCode = TritonErrorCode.INTERNAL) -> None:
        if not isinstance(code, TritonErrorCode):
            raise TypeError(f"TritonError: code must be one of TritonError's codes, found type {type(code)}")
        self._message = to_text(message, "TritonError: message")
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> TritonErrorCode:
        return self._code


def crossing(error: TritonError) -> tuple[int, str]:
    """The code and the text that a frame carries. By the attributes: a subclass may say anything in its methods."""
    return int(error._code), shortened(error._message, LONGEST_TEXT)


def describe(error: BaseException) -> str:
    """`Type: text`, a blank line, and where in the model's own files it happened, innermost call first. Never raises:
    an exception is the model's object, and whatever is asked of it runs the model's code."""
    text = text_of(error)
    try:
        places = _places(error)
    except BaseException:  # attributes that are not what they are in Python's own
        places = []
    return "\n".join((text, "", "At:", *places)) + "\n" if places else text


def text_of(error: BaseException) -> str:
    """`Type: text` of an exception, which may be unwilling, or long. Never raises."""
    try:
        text = str(error)
    except BaseException as failure:
        text = f"<no text: its __str__ raised {_name_of(type(failure))}>"
    return f"{_name_of(type(error))}: {shortened(text, LONGEST_TEXT)}"


def shortened(text: str, most: int) -> str:
    """Plain text, of which the beginning is kept where it is too long."""
    size = str.__len__(text)
    if size <= most:
        return "".join((text,))  # a subclass of str is the model's code, too
    return f"{str.__getitem__(text, slice(most))} ... [{size} characters in all]"


def format_traceback(error: BaseException) -> str:
    """The whole traceback, for the log. Never raises."""
    part = _model_part(error.__traceback__)
    try:
        lines = traceback.format_exception(type(error), error, part)
    except BaseException:
        lines = ["Traceback (most recent call last):\n", *traceback.format_tb(part), text_of(error)]
    text = "".join(lines)
    if len(text) <= LONGEST_TRACEBACK:
        return text
    return f"{text[: LONGEST_TRACEBACK // 2]}\n[...]\n{text[-LONGEST_TRACEBACK // 2 :]}"


def _places(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(_model_part(error.__traceback__))
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    places = [f"  {frame.filename}({frame.lineno}): {frame.name}" for frame in reversed(own or frames)]
    if isinstance(error, SyntaxError) and error.filename:  # its text has the file's name only
        places.insert(0, f"  {error.filename}({error.lineno})")
    return places


def _model_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the model's first line on; None where no line is the model's."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        part = part.tb_next
    return part
