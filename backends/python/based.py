"""Python-based backends: a backend whose `model.py` serves many models, whose own folders hold only data.

Source: Triton's Python-based backends. Flow: registry → [this] → a class as any other backend's.
"""

from __future__ import annotations

from pathlib import Path

from backends.python.backend import PythonBackend

PROGRAM = "model.py"
# The environment that such a backend may bring for all of its models.
BUNDLED_ENVIRONMENT = f"pb_exec_env_{PROGRAM}.tar.gz"


def python_based_backend(name: str, folder: Path) -> type[PythonBackend]:
    """The backend whose program lies in `folder`."""
    bundled = folder / BUNDLED_ENVIRONMENT
    members = {
        "__doc__": f"The Python-based backend '{name}' of {folder}.",
        "program": (folder / PROGRAM).absolute(),
        "bundled_environment": bundled.absolute() if bundled.is_file() else None,
    }
    return type(f"PythonBackend_{name}", (PythonBackend,), members)
