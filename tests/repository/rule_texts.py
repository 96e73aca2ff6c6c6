"""The texts of all rules of configurations, read from the code that raises them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# The modules that judge a configuration or fill it in.
MODULES = (
    "repository/pbtxt.py",
    "repository/json_form.py",
    "repository/protobuf_form.py",
    "repository/loader.py",
    "repository/backend_fields.py",
    "repository/unsupported.py",
    "repository/validation.py",
    "repository/validation_paths.py",
    "repository/validation_tensors.py",
    "repository/validation_scheduling.py",
    "repository/validation_ensemble.py",
    "repository/instance_groups.py",
    "repository/layout.py",
    "repository/labels.py",
    "repository/warmup_data.py",
    "repository/initial_state.py",
    "repository/completion.py",
    "actors/lifecycle/loader.py",
    "actors/ensemble/validation.py",
)
_ERRORS = ("InvalidArgument", "Unsupported", "NotFound", "Internal")


def rule_texts() -> dict[str, set[str]]:
    """The texts by module, with `*` in place of what is filled in."""
    return {module: set(_texts(ast.parse((ROOT / module).read_text()))) for module in MODULES}


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        name = node.exc.func.id if isinstance(node.exc.func, ast.Name) else ""
        if name in _ERRORS and node.exc.args:
            yield _template(node.exc.args[0])
        elif name == "_invalid":
            yield f"{_template(node.exc.args[1])} for *"


def _template(node: ast.expr) -> str:
    """`*` for each part that is not written out, and once for several beside each other."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    return "*"
