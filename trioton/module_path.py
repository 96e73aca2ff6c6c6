"""Where child processes find this very package."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).parent.parent


def module_path() -> str:
    """The PYTHONPATH for a child process, wherever that runs."""
    return os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
