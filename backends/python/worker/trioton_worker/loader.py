"""Imports a model's `model.py`: as `<version>.<file stem>`, or as `model` for a Python-based backend."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

CLASS_NAME = "TritonPythonModel"

_worker_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def load_model_class(path: str, model_directory: str, version_directory: str) -> Any:
    """The class TritonPythonModel of the file at `path`; raises whatever its import raises.

    A file that is not in the version directory belongs to a Python-based backend: it is imported as `model`.

    Nothing is compiled into the model's folders. Compiled files are matched with their sources by size and time in
    whole seconds, so a file that is changed soon after it was loaded would stay what it was.
    """
    sys.dont_write_bytecode = True
    folder, filename = os.path.split(path)
    while _worker_folder in sys.path:
        sys.path.remove(_worker_folder)
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11
        sys.path.insert(0, "")
    sys.path += [*model_folders(path, model_directory, version_directory), _worker_folder]
    stem = os.path.splitext(filename)[0]
    if version_directory != folder:
        return class_of(stem, path)
    version = os.path.basename(folder)
    # A folder without a version's name may have that of a library that the model wants to import.
    return class_of(f"{make_package(version if version.isdigit() else '1', folder).__name__}.{stem}", path)


def model_folders(path: str, model_directory: str, version_directory: str) -> list[str]:
    """Where a model may find modules of its own, in this order."""
    return list(dict.fromkeys((version_directory, model_directory, os.path.dirname(path))))


def class_of(name: str, path: str) -> Any:
    """The class in the file at `path`, imported under that name."""
    return class_in(_run(name, path), path)


def class_in(module: ModuleType, path: str) -> Any:
    """The class in a module that is imported already."""
    found = getattr(module, CLASS_NAME, None)
    if not isinstance(found, type):
        raise AttributeError(f"'{path}' has no class {CLASS_NAME}")
    return found


def make_package(name: str, folder: str) -> ModuleType:
    """The version directory as a package, so that the model's file may use relative imports."""
    init = os.path.join(folder, "__init__.py")
    if os.path.isfile(init):
        return _run(name, init, [folder])
    package = ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package
    return package


class UncompiledLoader(SourceFileLoader):
    """Neither reads nor writes a compiled file, whoever has made it."""

    def path_stats(self, path: Any) -> Any:
        raise OSError(f"'{path}' is to be compiled anew")


def _run(name: str, path: str, search: list[str] | None = None) -> ModuleType:
    loader = UncompiledLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=search)
    assert spec is not None  # the path ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    package, _, own = name.rpartition(".")
    if package:  # as the import statement does
        setattr(sys.modules[package], own, module)
    return module
