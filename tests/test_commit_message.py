"""The hook that reads commit messages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parent.parent / ".ci" / "commit_message.py"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("commit_message", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "message",
    [
        "Bound what a stream holds\n\nA client that did not read could make the server hold any size.\n",
        "Bound what a stream holds\n\nWhy.\n\nSigned-off-by: A <a@example.org>\n# On branch x\n",
        "Merge branch 'x'\n",
        'Revert "Bound what a stream holds"\n',
        "fixup! Bound what a stream holds\n",
        "# nothing but comments: git refuses it\n",
    ],
)
def test_good_messages(hook: ModuleType, message: str) -> None:
    assert hook.fault(message) is None


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Bound what a stream holds\n", "The body says why"),
        ("Bound what a stream holds\n\n# Please enter the commit message\n", "The body says why"),
        ("Bound what a stream holds\n\nSigned-off-by: A <a@example.org>\n", "The body says why"),
        ("Bound it\n\n# ------------------------ >8 ------------------------\ndiff --git\n", "The body says why"),
        ("Bound what a stream holds\nWhy.\n", "An empty line"),
        ("Bound what a stream holds.\n\nWhy.\n", "The first line"),
        (f"Bound {'x' * 100}\n\nWhy.\n", "The first line"),
    ],
)
def test_messages_that_are_refused(hook: ModuleType, message: str, fault: str) -> None:
    assert (hook.fault(message) or "").startswith(fault)
