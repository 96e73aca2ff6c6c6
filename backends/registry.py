"""Registry of backends, by name.

A backend is an entry point of the group `trioton.backends`, so any installed package can add one:

    [project.entry-points."trioton.backends"]
    my_backend = "my_package.my_module:MyBackend"

or of the group `trioton.engines`, whose classes are engines of language models (see `backends.engines.installed`), or a
Python-based backend: a folder `<name>/model.py` in one of the server's backend directories, or a model's folder
that holds a `model.py` (see `backends.python.based`).

Nothing is imported before a model asks for it: a broken or missing framework concerns only the models that need it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from backends.interface import Backend
from backends.requirements import framework_missing
from protocol.errors import Internal, InvalidArgument, Unavailable

GROUP = "trioton.backends"
ENGINES = "trioton.engines"
_PROGRAM = "model.py"
# The runtimes in Python of backends that also have another one: what `runtime: "model.py"` means for them.
_RUNTIMES = {"pytorch": Path(__file__).parent / "pytorch" / "runtime"}

# Backends of Triton that a repository may name and that nothing here serves yet, unless a package adds them.
_NOT_BUILT = frozenset(
    {
        "dali",
        "identity",
        "repeat",
        "square",
        "stateful",
        "tensorrtllm",
    }
)
# Those that Triton once had, and the way out for their models.
_GONE = {
    "caffe2": (
        "Caffe2 is no longer maintained, and Triton has dropped it with release 2.5: convert the model to ONNX, with "
        "the command convert-caffe2-to-onnx of a PyTorch 1.x, and serve that with backend 'onnxruntime'."
    ),
}


class BackendRegistry:
    """Finds a backend's class by the name that a configuration gives it.

    `extra` adds classes that need no entry point; they win over entry points of the same name, and those win over the
    Python-based backends in `directories`.
    """

    def __init__(self, extra: Mapping[str, type[Backend]] | None = None, directories: Sequence[Path] = ()) -> None:
        self._extra = dict(extra or {})
        self._directories = tuple(directories)

    @cached_property
    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for entry_point in entry_points(group=GROUP):
            found.setdefault(entry_point.name, []).append(entry_point)
        return found

    @cached_property
    def _engines(self) -> dict[str, EntryPoint]:
        return {entry_point.name: entry_point for entry_point in entry_points(group=ENGINES)}

    @property
    def names(self) -> tuple[str, ...]:
        """The backends that can be asked for, sorted; their packages may still miss a framework."""
        based = {path.parent.name for each in self._directories for path in each.glob(f"*/{_PROGRAM}")}
        return tuple(sorted({*self._extra, *self._entry_points, *self._engines, *based}))

    def find(
        self, name: str, *, model: str, directory: Path | None = None, is_python_based: bool = False
    ) -> type[Backend]:
        """The class of backend `name`, imported now if it was not before; `model` is only for the texts, `directory`
        that model's folder. Where it `is_python_based` (`runtime: "model.py"`), installed backends are not looked at.

        Blocks for as long as the framework takes to import; may be called from any thread.

        Raises:
            InvalidArgument: no package offers a backend of this name, or two offer different ones.
            Unavailable: its module needs a package that is not installed, or fails when imported.
            Internal: the entry point does not name a `Backend`.
        """
        if (extra := self._extra.get(name)) is not None:
            return extra
        candidates = [] if is_python_based else self._entry_points.get(name, [])
        if not candidates and not is_python_based and name in self._engines:
            return _engine(name, self._engines[name])
        if not candidates:
            folder = self._python_based_folder(name, directory, _RUNTIMES.get(name) if is_python_based else None)
            if folder is not None:
                return _python_based(name, folder)
            raise InvalidArgument(self._unknown(name, model))
        if len({candidate.value for candidate in candidates}) > 1:
            offers = ", ".join(sorted(_origin(candidate) for candidate in candidates))
            raise InvalidArgument(f"model '{model}': backend '{name}' is offered more than once: {offers}; keep one")
        return _import(candidates[0], model)

    def _python_based_folder(self, name: str, model_directory: Path | None, runtime: Path | None) -> Path | None:
        # Where there is a runtime, the `model.py` of a model's folder is the model's and not a backend's.
        folders = [] if model_directory is None or runtime is not None else [model_directory]
        if Path(name).name == name:  # a configuration must not lead out of the backend directories
            folders += [directory / name for directory in self._directories]
        folders += [] if runtime is None else [runtime]
        return next((folder for folder in folders if (folder / _PROGRAM).is_file()), None)

    def _unknown(self, name: str, model: str) -> str:
        text = (
            f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration. "
            f"Model '{model}' asks for it; installed backends are: {', '.join(self.names) or 'none'}. "
            f"One in Python may be a folder {name}/{_PROGRAM} in a directory that --backend-directory names."
        )
        if name in _NOT_BUILT:
            return f"{text} '{name}' is a backend of Triton that this server does not have yet."
        if name in _GONE:
            return f"{text} {_GONE[name]}"
        nearest = difflib.get_close_matches(name, self.names, n=1)
        return f"{text} Did you mean '{nearest[0]}'?" if nearest else text


def _python_based(name: str, folder: Path) -> type[Backend]:
    from backends.python.based import python_based_backend  # nothing is imported before a model asks for it

    return python_based_backend(name, folder)


def _engine(name: str, entry_point: EntryPoint) -> type[Backend]:
    from backends.engines.installed import engine_backend  # as above

    return engine_backend(name, entry_point.value)


def _import(entry_point: EntryPoint, model: str) -> type[Backend]:
    try:
        found = entry_point.load()
    except ImportError as error:
        origin = _origin(entry_point)
        raise framework_missing(entry_point.name, model=model, error=error, provided_by=origin) from error
    except Exception as error:  # whatever a stranger's module does when imported concerns this model alone
        raise Unavailable(
            f"model '{model}': backend '{entry_point.name}' ({_origin(entry_point)}) failed when it was imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise Internal(
            f"model '{model}': backend '{entry_point.name}' ({_origin(entry_point)}) is no subclass of "
            f"trioton.backends.Backend, but {found!r}"
        )
    return found


def _origin(entry_point: EntryPoint) -> str:
    package = f" of package {entry_point.dist.name}" if entry_point.dist is not None else ""
    return f"{entry_point.value}{package}"
