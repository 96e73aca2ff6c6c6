"""Static checks of a `model.py`: calls of `triton_python_backend_utils` that must fail, for `trioton doctor`.

Judged by the signatures of the functions themselves. What is only known when the model runs passes.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from backends.python.worker.trioton_worker import api

_MODULES: Mapping[str, Mapping[str, Any]] = {
    "triton_python_backend_utils": {name: getattr(api, name) for name in api.__all__},
    "c_python_backend_utils": api.EXTENSION,
}
# By the annotation of a parameter, the kinds of literals that it takes and what they are called.
_LITERALS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str, bytes), "str or bytes"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "Sequence[str]": ((), "a sequence of str"),
    "Sequence[Tensor]": ((), "a sequence of Tensor"),
}


def call_faults(path: Path) -> list[str]:
    """What is wrong, each with its place; nothing for a file that cannot be read or is no Python. Blocks."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (OSError, SyntaxError, ValueError):
        return []
    names = _Names(tree)
    found = sorted(problem for node in ast.walk(tree) for problem in _problems(node, names))
    return [f"{path}:{line}: {problem}" for line, problem in found]


class _Names:
    """What the file calls the modules, and what it has imported from them, wherever it does."""

    def __init__(self, tree: ast.AST) -> None:
        self.modules: dict[str, str] = {}
        self.imported: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in _MODULES:
                        self.modules[alias.asname or alias.name] = alias.name
            elif isinstance(node, ast.ImportFrom) and node.module in _MODULES and not node.level:
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def of(self, node: ast.AST) -> str:
        """The name of what an expression stands for, beginning with its module; empty for anything else."""
        if isinstance(node, ast.Name):
            return self.modules.get(node.id, "") or self.imported.get(node.id, "")
        if isinstance(node, ast.Attribute):
            before = self.of(node.value)
            return f"{before}.{node.attr}" if before else ""
        return ""


def _problems(node: ast.AST, names: _Names) -> Iterator[tuple[int, str]]:
    """Each with its line."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names.modules:
        module = names.modules[node.value.id]
        if isinstance(node.ctx, ast.Load) and node.attr not in _MODULES[module] and not node.attr.startswith("_"):
            yield node.lineno, f"'{module}' has no '{node.attr}'"
    elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module in _MODULES and not node.level:
        for alias in node.names:
            if alias.name != "*" and alias.name not in _MODULES[node.module]:
                yield node.lineno, f"'{node.module}' has no '{alias.name}'"
    elif isinstance(node, ast.Call):
        name = names.of(node.func)
        if called := _find(name):
            for problem in _call_problems(node, name.partition(".")[2], called):
                yield node.lineno, problem
    elif isinstance(node, ast.AsyncFor) and _is_exec(node.iter):
        yield node.iter.lineno, "only Trioton takes `async for` over the responses of a call; Triton takes `for`"


def _find(name: str) -> Callable[..., object] | None:
    module, _, rest = name.partition(".")
    found: Any = _MODULES.get(module)
    if found is None or not rest:
        return None
    first, *others = rest.split(".")
    found = found.get(first)
    for each in others:
        found = getattr(found, each, None)
    is_ours = callable(found) and found.__module__.startswith(api.__package__)
    return found if is_ours and found is not api.TritonModelException else None


def _call_problems(node: ast.Call, name: str, called: Callable[..., object]) -> Iterator[str]:
    if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
        return
    try:
        signature = inspect.signature(called)
        given = signature.bind(*node.args, **{str(each.arg): each.value for each in node.keywords}).arguments
    except (TypeError, ValueError) as error:
        yield f"{name}: {error}"
        return
    if missing := [each for each in getattr(called, "_REQUIRED", ()) if each not in given]:
        yield f"{name}: missing required arguments: {', '.join(missing)}"
    for parameter, value in given.items():
        if expected := _wrong_literal(str(signature.parameters[parameter].annotation), value):
            yield f"{name}: {parameter} must be {expected}, got {ast.unparse(value)}"


def _wrong_literal(annotation: str, value: ast.expr) -> str:
    """What is expected in place of a literal; empty where that is what it is."""
    kinds, expected = _LITERALS.get(annotation, ((), ""))
    if not expected:
        return ""
    if isinstance(value, ast.Constant):
        return "" if isinstance(value.value, kinds) else expected
    is_container = isinstance(value, (ast.List, ast.Tuple, ast.ListComp))
    if annotation.startswith("Sequence"):
        return expected if isinstance(value, (ast.Dict, ast.Set, ast.JoinedStr)) else ""
    return expected if is_container or isinstance(value, (ast.Dict, ast.Set)) else ""


def _is_exec(node: ast.expr) -> bool:
    if isinstance(node, ast.Await):
        node = node.value
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in ("exec", "async_exec")
