"""The table in docs/protocol-coverage.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
DOCUMENT = TESTS.parent / "docs" / "protocol-coverage.md"
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", DOCUMENT.read_text())))


def test_the_table_is_read() -> None:
    assert len(NAMED) > 100


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_it_names_is_there(file: str) -> None:
    there = set(re.findall(r"^(?:async )?def (test_\w+)\(", (TESTS / file).read_text(), re.MULTILINE))
    assert {name for named, name in NAMED if named == file} <= there
