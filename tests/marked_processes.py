"""Processes that tests share, told from those that the code under test starts.

Servers and emulators serve many tests, so whoever counts what a test has left behind must not count them.
"""

from __future__ import annotations

from pathlib import Path

_NAME = "TRIOTON_TESTS_SHARED_PROCESS"
# For the environment of such a process.
MARK = {_NAME: "1"}


def is_marked(pid: int) -> bool:
    """
    Raises:
        ProcessLookupError: it has ended.
    """
    return f"{_NAME}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
