"""Freed memory is kept; counted in page faults, each of a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trioton.allocator import IdleTrim

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's")
def test_memory_is_not_fetched_anew() -> None:
    kept, faults = run("keep")
    if not kept:
        pytest.skip("this is not glibc")
    assert faults < 160
    assert run("as it is")[1] > 10 * faults


@pytest.mark.slow
def test_an_operators_own_choice_stays() -> None:
    assert not run("keep", MALLOC_TRIM_THRESHOLD_="1000000")[0]


# Keeps 128 MiB at the end of its heap, below something that stays, as requests in flight leave it.
GIVES_BACK = """
import os, trio
import trioton.allocator as allocator
from trioton.allocator import resident_bytes

async def main():
    before = resident_bytes()
    blocks = [bytearray(b"x") * 600_000 for _ in range(220)]
    held = blocks.pop()
    del blocks
    grown = resident_bytes() - before
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocator.give_back_when_idle)
        with trio.fail_after(30):
            while resident_bytes() - before > 16 << 20:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    print(grown)

if allocator.keep_freed_memory():
    allocator.LOOK_SECONDS = 0.05
    trio.run(main)
else:
    print(-1)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's")
def test_an_idle_process_gives_back_what_it_kept() -> None:
    done = subprocess.run([sys.executable, "-c", GIVES_BACK], capture_output=True, text=True, check=True, timeout=60)
    grown = int(done.stdout)
    if grown == -1:
        pytest.skip("this is not glibc")
    assert grown > 100 << 20


MIB = 1 << 20


@pytest.mark.parametrize(
    ("looks", "due"),
    [
        # When, the processor time until then, the memory; what is left is 100 MiB.
        ([(10, 0.1, 200)], [True]),
        ([(10, 0.1, 200), (20, 0.2, 200)], [True, True]),
        ([(10, 0.1, 200), (20, 0.2, 110)], [True, False]),
        ([(10, 5.0, 200), (20, 9.0, 200), (30, 9.1, 200)], [False, False, True]),
        ([(10, 5.0, 300), (20, 9.0, 340), (30, 14.0, 360)], [True, False, True]),  # it is never idle
        ([(10, 0.1, 100), (20, 0.2, 115), (30, 0.3, 117)], [True, False, True]),
    ],
)
def test_when_memory_is_given_back(looks: list[tuple[float, float, int]], due: list[bool]) -> None:
    policy, found = IdleTrim(), []
    for now, cpu_seconds, resident in looks:
        found.append(policy.is_due(now=now, cpu_seconds=cpu_seconds, resident=resident * MIB))
        if found[-1]:
            policy.trimmed(100 * MIB)
    assert found == due
