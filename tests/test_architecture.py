"""The plan of the house, held against the code: who may import whom, and what no module may do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What each part may import of the others; the longest matching prefix decides.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "protocol": (),
    "protocol.proto": (),
    "protocol.http": ("protocol",),
    "protocol.grpc": ("protocol", "protocol.proto"),
    "repository": ("protocol", "protocol.proto"),
    "backends": ("protocol", "repository", "backends.python.worker"),
    "backends.python.worker": (),
    "actors": ("protocol", "repository", "backends"),
    "trioton": ("protocol", "protocol.http", "protocol.grpc", "repository", "backends", "actors"),
}
PACKAGES = ("protocol", "repository", "backends", "actors", "trioton")
MODULES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "generated" not in path.parts and "__pycache__" not in path.parts
)


def part_of(module: str) -> str:
    """The part of the house that a dotted module name belongs to."""
    return max((part for part in MAY_IMPORT if f"{module}.".startswith(f"{part}.")), key=len)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    """Our own modules that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or "worker" in path.parts, f"{path}: relative import"
            names = [node.module or ""]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in PACKAGES)


@pytest.mark.parametrize("path", MODULES, ids=[module_name(path) for path in MODULES])
def test_imports_run_one_way(path: Path) -> None:
    """Edges know no actors, backends know no actors, only `trioton` knows `trioton`."""
    here = part_of(module_name(path))
    for name in imported(path):
        there = part_of(name)
        assert there == here or there in MAY_IMPORT[here], f"{module_name(path)} imports {name}"


def test_no_import_circle() -> None:
    graph = {module_name(path): set(imported(path)) for path in MODULES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, f"import circle: {' -> '.join((*trail, module))}"
        if module not in done:
            for name in graph.get(module, ()):
                if name != module:
                    visit(name, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("path", MODULES, ids=[module_name(path) for path in MODULES])
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


def test_no_asyncio_in_the_server() -> None:
    """The worker of the Python backend is a process of its own and may use what it likes."""
    users = [
        module_name(path)
        for path in MODULES
        if "worker" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(
            name.split(".")[0] == "asyncio"
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        )
    ]
    assert users == []
