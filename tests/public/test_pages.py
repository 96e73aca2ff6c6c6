"""Examples and pages use the public names alone."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.public.listing import MODULES, public_names

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors", "backends", "protocol", "repository", "trioton")
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
# Pages for those who change Trioton itself; all others are for those who use it.
INSIDE = {
    "architecture.md",
    "benchmarks.md",
    "contributing.md",
    "design.md",
    "glossary.md",
    "modules.md",
    "performance.md",
}
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "examples").rglob("*.md")]
    + [path for path in (ROOT / "docs").rglob("*.md") if path.name not in INSIDE]
)
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(rf"`((?:{'|'.join(PACKAGES)})\.[a-z]\w*(?:\.\w+)*)(?:\(.*?\))?`")


def private_imports(tree: ast.AST) -> Iterator[str]:
    """What is imported of our packages and is no public module, or no public name of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if is_ours(each.name) and each.name not in MODULES)
        elif isinstance(node, ast.ImportFrom) and is_ours(node.module or ""):
            names = [f"{node.module}.{each.name}" for each in node.names]
            yield from (name for name in names if not is_public(name))


def is_ours(module: str) -> bool:
    return module.split(".")[0] in PACKAGES


def is_public(dotted: str) -> bool:
    """A public module, one of its names, or an attribute of one."""
    parts = dotted.split(".")
    module = ".".join(parts[:2])
    if module not in MODULES:
        return False
    return len(parts) == 2 or parts[2] in public_names(importlib.import_module(module))


@pytest.mark.parametrize("path", EXAMPLES, ids=[str(path.relative_to(ROOT)) for path in EXAMPLES])
def test_examples_import_public_names_alone(path: Path) -> None:
    assert list(private_imports(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_pages_show_public_names_alone(path: Path) -> None:
    text = path.read_text()
    for code in CODE.findall(text):
        assert list(private_imports(ast.parse(code))) == []
    assert [name for name in DOTTED.findall(text) if not is_public(name)] == []


def test_what_is_private_is_found() -> None:
    code = "import trioton.flags\nfrom trioton.backends import Backend, Arrays\nfrom backends.interface import Backend"
    found = ["trioton.flags", "trioton.backends.Arrays", "backends.interface.Backend"]
    assert list(private_imports(ast.parse(code))) == found
    assert [is_public(name) for name in ("trioton.caches", "trioton.server.Server.run", "trioton.log")] == [
        True,
        True,
        False,
    ]
