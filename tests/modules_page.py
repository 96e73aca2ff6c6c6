"""Writes `docs/modules.md`, one line for every module, from the modules' own docstrings; `--check` only compares."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "modules.md"
PACKAGES = ("protocol", "repository", "backends", "actors", "trioton")
SENTENCE = re.compile(r"(.+?)(?:[.;](?:\s|$))", re.DOTALL)


def page() -> str:
    """The page as it should be."""
    lines = [
        "# Modules",
        "",
        "One line for every module, from its own docstring (`make generate` writes this page). "
        "[architecture.md](architecture.md) says how they work together.",
    ]
    for package in PACKAGES:
        for folder in sorted({path.parent for path in _modules(package)}):
            lines += ["", f"## {folder.relative_to(ROOT)}/", "", "| module | what it is for |", "|---|---|"]
            lines += [f"| `{path.name}` | {_sentence(path)} |" for path in _modules(package) if path.parent == folder]
    return "\n".join(lines) + "\n"


def _modules(package: str) -> Iterator[Path]:
    for path in sorted((ROOT / package).rglob("*.py")):
        if "generated" not in path.parts and "__pycache__" not in path.parts:
            yield path


def _sentence(path: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    found = SENTENCE.match(text)
    return (found.group(1) if found else text).rstrip(".:;").replace("|", "\\|")


def main(arguments: list[str]) -> int:
    wanted = page()
    if "--check" in arguments:
        if PAGE.is_file() and PAGE.read_text() == wanted:
            return 0
        print("docs/modules.md is out of date: run `make generate`", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
