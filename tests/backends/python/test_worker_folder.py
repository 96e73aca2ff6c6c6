"""The worker's folder stands alone: it runs under older Pythons, and where nothing of the server is installed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from backends.python.workers.process import MAIN

FOLDER = MAIN.parent
FILES = sorted(FOLDER.rglob("*.py"))
ALLOWED = {*sys.stdlib_module_names, "numpy", "trioton_worker"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_its_files_are_for_python_3_8_and_import_nothing_else(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= ALLOWED
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert node.module is not None
            assert node.module.partition(".")[0] in ALLOWED


def test_it_is_all_there() -> None:
    assert len(FILES) > 10


def test_the_utilities_export_all_that_is_public() -> None:
    """As a model sees them: by their plain name, with the folder on the path."""
    code = (
        "import triton_python_backend_utils as u, trioton_worker.api as a; "
        "print(*sorted(set(a.__all__) ^ {n for n in vars(u) if not n.startswith('_')}))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
