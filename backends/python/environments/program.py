"""Static checks of a `model.py`, without running it: it parses and has a class with `execute`; it plainly has no
`auto_complete_config`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from protocol.errors import InvalidArgument

CLASS = "TritonPythonModel"

_LARGEST_PROGRAM = 1 << 18
# The class, without bases or a metaclass, which could bring methods of their own.
_PLAIN_CLASS = re.compile(rb"^class TritonPythonModel[ \t]*(?:\([ \t]*\))?[ \t]*:", re.MULTILINE)
# Where a text only speaks of it: in a line of comment, or in quotes.
_MENTION = re.compile(rb"^[ \t]*#.*|([\"'`])TritonPythonModel\1", re.MULTILINE)
# What can give the class a method that its own text does not name: code that is made up, names that are, a decorator,
# an object that is told which class it is in, and another encoding.
_HIDDEN = re.compile(
    rb"auto_complete_config|^@|\bimport[ \t]+\*|(?<!\.)\b(?:eval|exec|globals|locals|vars|getattr|setattr)\b"
    rb"|\b__(?:build_class|builtins|class|dict|getattr|import|set_name|setattr)__|(?<!getLogger\()\b__name__(?! *==)"
    rb"|\bsys\.modules\b|\bimportlib\b|\bbuiltins\b|\bcoding[:=]",
    re.MULTILINE,
)


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


def may_complete(path: Path) -> bool:
    """Whether the class may have a method `auto_complete_config`; False only where the file plainly has none. It is not
    parsed, which would hold the interpreter's lock for milliseconds. Blocks."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_PROGRAM + 1)
    except OSError:  # whoever runs it says so
        return True
    if len(text) > _LARGEST_PROGRAM or not text.isascii() or _HIDDEN.search(text) or not _PLAIN_CLASS.search(text):
        return True
    return _MENTION.sub(b"", text).count(CLASS.encode()) != 1


def needed_modules(path: Path) -> Sequence[str]:
    """Modules of Python that its worker needs beside those that any does. Blocks."""
    try:
        with path.open("rb") as file:
            return ("asyncio",) if b"async def" in file.read(_LARGEST_PROGRAM) else ()
    except OSError:  # whoever runs it says so
        return ()


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
