"""Import hook that hides the server's packages from models.

They are an application's, with plain names, and under the server's interpreter they stand on the model's path: a
model's `protocol.py` would be shadowed by the server's package, and a model could come to depend on it.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Sequence

NAMES = frozenset({"actors", "backends", "protocol", "repository", "trioton"})

# Where this folder's own package, `backends`, is installed.
_root = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 4))


class HidingFinder(importlib.abc.MetaPathFinder):
    """Finds the names above everywhere but where the server is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or fullname not in NAMES:
            return None
        spec = PathFinder.find_spec(fullname, [entry for entry in sys.path if os.path.realpath(entry) != _root])
        if spec is None:
            raise ModuleNotFoundError(f"No module named '{fullname}'", name=fullname)
        return spec


def hide_server() -> None:
    sys.meta_path.insert(0, HidingFinder())
