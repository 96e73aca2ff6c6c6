"""Exit of the worker process, where the model asks for it or nothing is left to do."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress


def exit_now(code: int) -> None:
    """End at once, even if threads of the model are still running."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # closed by the model, or not what it was
            stream.flush()
    os._exit(code & 0xFF)


def exit_for(error: BaseException) -> None:
    """End as the interpreter would where nobody catches the exception."""
    print_error(error)
    code = error.code if isinstance(error, SystemExit) else 1
    exit_now(code if isinstance(code, int) else code is not None)


def print_error(error: BaseException) -> None:
    """Say what the interpreter would say. Never raises."""
    with suppress(BaseException):
        if not isinstance(error, SystemExit):
            traceback.print_exception(type(error), error, error.__traceback__)
        elif isinstance(error.code, str):
            print(error.code, file=sys.stderr)
