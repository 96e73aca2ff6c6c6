"""Imports a model's file, as `<version>.<file stem>`, with its folders on the path."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from .session import Session
from .session import session as current_session

CLASS_NAME = "TritonPythonModel"

_worker_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def get_model_dir() -> str:
    """The directory of the model's file: the version directory."""
    here = current_session()
    return here.model_folder if here is not None else ""


def load_model_class(path: str, model_directory: str, session: Session) -> Any:
    """The class TritonPythonModel of the file at `path`; raises whatever its import raises."""
    folder, filename = os.path.split(path)
    session.model_folder = folder
    while _worker_folder in sys.path:
        sys.path.remove(_worker_folder)
    sys.path += [folder, model_directory, _worker_folder]
    version = os.path.basename(folder)
    # A folder without a version's name may have that of a library that the model wants to import.
    package = _package(session.package or (version if version.isdigit() else "1"), folder)
    name = f"{package.__name__}.{os.path.splitext(filename)[0]}"
    module = _run(name, path)
    found = getattr(module, CLASS_NAME, None)
    if not isinstance(found, type):
        raise AttributeError(f"'{path}' has no class {CLASS_NAME}")
    return found


def _package(name: str, folder: str) -> ModuleType:
    """The version directory as a package, so that the model's file may use relative imports."""
    init = os.path.join(folder, "__init__.py")
    if os.path.isfile(init):
        return _run(name, init, [folder])
    package = ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package
    return package


def _run(name: str, path: str, search: list[str] | None = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=search)
    assert spec is not None  # the path ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
