"""Atomic exchange of two paths (renameat2), where the system supports it.

Source: renameat2(2).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_HERE = -100  # AT_FDCWD: paths are those of this process
_EXCHANGE = 2  # RENAME_EXCHANGE


def swap(one: Path, other: Path) -> bool:
    """Whether they have changed places; both must be there, on one file system. Nothing has changed if not."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)
