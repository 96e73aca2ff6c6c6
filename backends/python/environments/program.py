"""Static checks of a `model.py`, without running it: it parses, and has a class with `execute`."""

from __future__ import annotations

import ast
from pathlib import Path

from protocol.errors import InvalidArgument

CLASS = "TritonPythonModel"


def check_program(path: Path, model: str) -> None:
    """Raises InvalidArgument where the file is no Python, or its top level has no class of the expected name with an
    `execute`. One that may get them in another way (by import, by inheritance) passes. Blocks."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        raise InvalidArgument(f"model '{model}': {where}: {getattr(error, 'msg', error)}") from None
    except OSError as error:
        raise InvalidArgument(f"model '{model}': cannot read '{path}': {error.strerror}") from None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == CLASS]
    if not classes:
        if _binds(tree, CLASS):
            return
        raise InvalidArgument(f"model '{model}': '{path}' has no class '{CLASS}'")
    found = classes[-1]
    methods = {node.name for node in found.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    if "execute" not in methods and not found.bases and not _binds(found, "execute"):
        raise InvalidArgument(f"model '{model}': class '{CLASS}' of '{path}' has no method 'execute'")


def _binds(tree: ast.AST, name: str) -> bool:
    """Whether a name is bound in another way than by a definition, or might be."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) in (name, "*"):
            return True
        if isinstance(node, ast.ClassDef) and node.name == name and node is not tree:  # under a condition
            return True
    return False
