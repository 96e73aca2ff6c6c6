"""Silences the log for commands that print a result to stdout."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_log() -> Iterator[None]:
    """No message of the block is shown."""
    root, silence = logging.getLogger(), logging.NullHandler()
    root.addHandler(silence)  # else warnings go to stderr
    try:
        yield
    finally:
        root.removeHandler(silence)
