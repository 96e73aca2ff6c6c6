"""Import isolation for models that run in the server's process: their modules are imported under a private package.

`import helper` in the code of such a model is the file beside it, as in a worker; for everybody else the name stays
what it is. What is installed comes first, as in a worker too.
"""

from __future__ import annotations

import builtins
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from backends.python.worker.trioton_worker.loader import UncompiledLoader


class OwnModules:
    """The finder for what lies in `folders`, under the name of a package; to be put into `sys.meta_path`."""

    def __init__(self, package: str, folders: Sequence[str], names: Sequence[str]) -> None:
        self.package = package
        self._folders = list(folders)
        self._names = frozenset(name for name in names if not _is_installed(name))
        self._builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system asks for it."""
        parent, _, _ = name.rpartition(".")
        if parent.partition(".")[0] != self.package:
            return None
        spec = PathFinder.find_spec(name, self._folders if parent == self.package else path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path, self._builtins)
        return spec

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """The import statement of the model's code."""
        first, _, _ = name.partition(".")
        if level or first not in self._names:
            return __import__(name, globals, locals, fromlist or (), level)
        found = __import__(f"{self.package}.{name}", globals, locals, fromlist or ())
        return found if fromlist else sys.modules[f"{self.package}.{first}"]


class _Loader(UncompiledLoader):
    """Runs a module with import statements that look among the model's modules first."""

    def __init__(self, name: str, path: str, given: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._given = given

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._given
        super().exec_module(module)


def _is_installed(name: str) -> bool:
    """Whether a worker would find it before the model's folders."""
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return True
    folders = [sysconfig.get_path(key) for key in ("purelib", "platlib")]
    return PathFinder.find_spec(name, list(dict.fromkeys(folders))) is not None
