"""Freed memory is kept; counted in page faults, each of a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from trioton.allocator import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def requests():
    for _ in range(20):
        blocks = [bytes(600_000) for _ in range(8)]
        del blocks

kept = sys.argv[1] == "keep" and keep_freed_memory()
requests()
before = faults()
requests()
print(int(kept), faults() - before)
"""


def run(word: str, **environment: str) -> tuple[bool, int]:
    """Whether memory is kept, and how many page faults 160 blocks took."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, word],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    kept, faults = done.stdout.split()
    return kept == "1", int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's")
def test_memory_is_not_fetched_anew() -> None:
    kept, faults = run("keep")
    if not kept:
        pytest.skip("this is not glibc")
    assert faults < 160
    assert run("as it is")[1] > 10 * faults


def test_an_operators_own_choice_stays() -> None:
    assert not run("keep", MALLOC_TRIM_THRESHOLD_="1000000")[0]
