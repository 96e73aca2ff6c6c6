"""The command `trioton-perf-analyzer`: `trioton perf-analyzer` for tools that want the path of one program."""

from __future__ import annotations

from trioton.cli import main as trioton
from trioton.cli import taken_words


def main() -> int:
    """Measure and report; answers the exit code."""
    return trioton(["perf-analyzer", *taken_words()])
