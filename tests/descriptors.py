"""The open descriptors of the tests' own process."""

from __future__ import annotations

import os
from pathlib import Path


def open_descriptors() -> set[tuple[int, str]]:
    """By number and by what each one is. Compare what is new, not how many there are: clients of other tests have
    threads that close their idle connections whenever they like."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add((int(entry.name), os.readlink(entry)))
        except FileNotFoundError:  # of the listing itself, or closed meanwhile
            continue
    return found
