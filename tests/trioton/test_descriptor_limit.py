"""The limit of descriptors, each case in a process of its own, since a limit is a process's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trioton.descriptor_limit import raise_descriptor_limit

CHANGE = """
import resource, sys
from trioton.descriptor_limit import WANTED, raise_descriptor_limit
soft, hard = (int(each) for each in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
raise_descriptor_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [(256, 1024, 1024), (1024, 1024, 1024), (512, 4096, 4096)],
)
def test_it_is_raised_to_the_hard_limit(soft: int, hard: int, raised: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHANGE, str(soft), str(hard)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(raised), str(hard)]


def test_it_is_raised_no_further_than_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hard limit of this machine may be less."""
    monkeypatch.setattr("trioton.descriptor_limit.WANTED", 300)
    limits = [(256, 4096)]
    monkeypatch.setattr("trioton.descriptor_limit.resource.getrlimit", lambda which: limits[-1])
    monkeypatch.setattr("trioton.descriptor_limit.resource.setrlimit", lambda which, both: limits.append(both))
    raise_descriptor_limit()
    raise_descriptor_limit()
    assert limits == [(256, 4096), (300, 4096)]
