"""Standard streams of a process that was started without some of them (`trioton serve >&-`).

Else the first file or socket that is opened would get the number of the one that is missing, and whatever a library
prints would go there.
"""

from __future__ import annotations

import os
import sys

_NAMES = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def provide_standard_streams() -> None:
    """Open those that are missing, to and from nowhere. To be called before anything else is opened."""
    for number in range(len(_NAMES)):
        if not _is_open(number):
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    for number, (name, mode) in enumerate(_NAMES):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (for as long as the process lives)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
