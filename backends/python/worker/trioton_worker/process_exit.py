"""The end of this process where the model asks for it, or where nothing else is left to do."""

from __future__ import annotations

import os
import sys
import traceback


def exit_now(code: int) -> None:
    """End at once, even if threads of the model are still running."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_for(error: BaseException) -> None:
    """End as the interpreter would where nobody catches the exception."""
    if not isinstance(error, SystemExit):
        traceback.print_exception(type(error), error, error.__traceback__)
        exit_now(1)
        return
    if isinstance(error.code, str):
        print(error.code, file=sys.stderr)
    exit_now(error.code if isinstance(error.code, int) else error.code is not None)
