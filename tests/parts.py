"""Runs all tests in several calls of pytest, so that a process imports one framework only: `python -m tests.parts`.

What fails is told at once, and once more at the end, with the last lines of each report: where only the end of a long
log is kept, it still says why. After twenty failures a run ends: one thing that is broken may let hundreds of tests
wait for their timeouts.

Every process of a pytest-xdist run imports all modules that are collected. In a single call that is every framework a
backend has, in every process: more than a gigabyte each. Here the tests that need none run first, and those of each
framework in a call of their own. Arguments are passed on to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.failures_at_once import told

ROOT = Path(__file__).parent.parent
# The packages that take most time and memory to import.
FRAMEWORKS = (
    *("jax", "lightgbm", "openvino", "openvino_genai", "scipy", "sklearn", "tensorflow", "torch", "treelite"),
    "xgboost",
)
# What each part has found, as JUnit's XML.
RESULTS = Path("build", "test-results")
# So many failed tests are told of at the end.
MOST_REPORTS = 20
FLAGS = ("-p", "tests.failures_at_once", f"--maxfail={MOST_REPORTS}")
# In a new clone nothing is compiled yet; these few modules soon are.
FIRST_PART = ("tests/repository",)
# The tests whose modules import one of them.
FRAMEWORK_PARTS: Mapping[str, Sequence[str]] = {
    "fil": ["tests/backends/fil"],
    "jax": ["tests/backends/jax"],
    "openvino": ["tests/backends/openvino"],
    "pytorch": ["tests/backends/pytorch", "tests/e2e/test_gpus.py", "tests/protocol/tensors/test_dlpack.py"],
    "tensorflow": ["tests/backends/tensorflow"],
    "several frameworks": [
        "tests/backends/conformance",
        "tests/backends/test_out_of_memory.py",
        "tests/bench/test_batching_efficiency.py",
        "tests/bench/test_main.py",
        "tests/bench/test_report.py",
    ],
}


def parts(
    framework_parts: Mapping[str, Sequence[str]] = FRAMEWORK_PARTS, first: Sequence[str] = FIRST_PART
) -> dict[str, list[str]]:
    """Pytest's arguments that select each part, by the part's name. Together they select every test, once."""
    named = {"repository": first, **framework_parts} if first else framework_parts
    rest = [f"--ignore={path}" for paths in named.values() for path in paths]
    begin = {"repository": list(first)} if first else {}
    return {**begin, "no framework": rest, **{name: list(paths) for name, paths in framework_parts.items()}}


def run(arguments: Sequence[str], selections: Mapping[str, Sequence[str]], root: Path = ROOT) -> int:
    """Runs every part, whether or not those before it passed; the exit status is 0 when all tests passed."""
    # Pytest rewrites the assertions of every module; what it keeps as bytecode, no other process needs to rewrite.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    statuses: dict[str, int] = {}
    shutil.rmtree(root / RESULTS, ignore_errors=True)
    for number, (name, selection) in enumerate(selections.items(), start=1):
        print(f"Tests, part {number} of {len(selections)}: {name}", flush=True)
        command = [sys.executable, "-m", "pytest", f"--junit-xml={RESULTS / name}.xml", *arguments, *selection]
        statuses[name] = subprocess.run(command, cwd=root, env=environment, check=False).returncode
        if statuses[name] == pytest.ExitCode.INTERRUPTED:
            break
    for path in sorted((root / RESULTS).glob("*.xml")):
        for line in failures(path):
            print(line)
    return judge(statuses)


def failures(results: Path) -> Iterator[str]:
    """What has failed in one part, in lines: each test, and the end of its report."""
    failed = [
        (test, outcome)
        for test in ElementTree.parse(results).iter("testcase")
        for outcome in test
        if outcome.tag in ("failure", "error")
    ]
    for test, outcome in failed[:MOST_REPORTS]:
        yield from told(outcome.tag, f"{test.get('classname')}::{test.get('name')}", outcome.text or "")
    if len(failed) > MOST_REPORTS:
        yield f"and {len(failed) - MOST_REPORTS} more"


def judge(statuses: Mapping[str, int]) -> int:
    """The first failure's status; that no test was selected fails only where it is so in all parts."""
    passed = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    failed = {name: status for name, status in statuses.items() if status not in passed}
    if failed:
        print(f"Failed: {', '.join(failed)}", flush=True)
        return next(iter(failed.values()))
    return min(statuses.values())


if __name__ == "__main__":
    sys.exit(run([*FLAGS, *sys.argv[1:]], parts()))
