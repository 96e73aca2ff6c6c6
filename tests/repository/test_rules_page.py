"""`docs/configuration.md` lists every rule with its text, and tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repository.rule_texts import rule_texts

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs" / "configuration.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))
# Rows of the rules' tables: field, rule, text, test.
TEXTS = set(re.findall(r"^\| .+ \| .+ \| `([^`]+)` \| `[\w/]+\.py::\w+` \|$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("module", sorted(rule_texts()))
def test_every_text_of_the_code_is_on_the_page(module: str) -> None:
    assert {shown(text) for text in rule_texts()[module]} <= TEXTS


def test_the_page_has_no_text_that_is_not_in_the_code() -> None:
    known = {shown(text) for texts in rule_texts().values() for text in texts}
    assert known >= TEXTS


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_it_names_is_there(file: str) -> None:
    there = set(re.findall(r"^ *(?:async )?def (test_\w+)\(", (TESTS / file).read_text(), re.MULTILINE))
    assert {name for named, name in NAMED if named == file} <= there


def shown(text: str) -> str:
    return re.sub(r"\*+", "…", text)
