"""Temporary directory of a model, reference-counted and deleted with the last user."""

from __future__ import annotations

import threading
from collections.abc import Callable

from repository.layout import ModelDirectory


class HeldDirectory:
    """Removed when the last of its users has released it, which blocks. Whoever made it is the first user."""

    def __init__(self, directory: ModelDirectory, remove: Callable[[], None]) -> None:
        self.directory = directory
        self._remove = remove
        self._users = 1
        self._lock = threading.Lock()

    def share(self) -> None:
        """Count one more user."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            is_unused = not self._users
        if is_unused:
            self._remove()
