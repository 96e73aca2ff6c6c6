"""A function on a device, with its weights and executables, shared by the instances there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backends.interface import InstanceSpec
from backends.jax.binding import Binding
from backends.jax.device import device_of
from backends.jax.errors import Shapes, load_errors, told_shapes
from backends.jax.executables import Executables
from backends.jax.exported import ExportedFunction
from backends.jax.options import MAX_COMPILED_SHAPES, JaxOptions
from backends.jax.shapes import known_shapes
from backends.jax.weights import on_device, read_weights
from backends.naming import all_inputs
from protocol.errors import InvalidArgument
from repository.shape_rules import DimRule


@dataclass(frozen=True, slots=True)
class LoadedFunction:
    """`weights` are the library's arrays, the first arguments of each of the `executables`."""

    function: ExportedFunction
    binding: Binding
    device: Any
    weights: list[Any]
    executables: Executables


def load_function(spec: InstanceSpec, options: JaxOptions, batch: DimRule | None) -> LoadedFunction:
    """Read a model for an instance, and compile it for the shapes that its configuration tells.

    Raises:
        ServerError: file, weights, configuration and device do not fit each other, or the library fails.
    """
    source = spec.source
    function = ExportedFunction(source)
    binding = Binding(spec.config, function)
    weights = read_weights(function, model=source.name)
    device = device_of(spec, function.platforms)
    with load_errors(source.name, "moving the weights to the device"):
        placed = on_device(weights, device)

    def compile(shapes: Shapes) -> Any:
        return function.compile(shapes, binding.results, device, options.compiler)

    executables = Executables(compile, options.shape_limit, source.name)
    try:
        for shapes in _shapes_at_load(spec, function, binding, options, batch):
            with load_errors(source.name, f"compiling for the shapes {told_shapes(shapes)}"):
                executables.get(shapes)
    except BaseException:
        function.close()
        raise
    return LoadedFunction(function, binding, device, placed, executables)


def _shapes_at_load(
    spec: InstanceSpec, function: ExportedFunction, binding: Binding, options: JaxOptions, batch: DimRule | None
) -> list[Shapes]:
    if not options.compiles_at_load:
        return []
    by_name = {entry.name: entry for entry in all_inputs(spec.config)}
    shapes = known_shapes(spec.config, [by_name[name] for name in binding.inputs], function.inputs, batch)
    if len(shapes) > options.shape_limit:
        raise InvalidArgument(
            f"model '{spec.config.name}', parameter '{MAX_COMPILED_SHAPES}': the configuration allows for "
            f"{len(shapes)} shapes, and at most {options.shape_limit} are kept compiled"
        )
    return shapes


class SharedFunction:
    """The function of one load on one device: made by its first user, dropped with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: LoadedFunction | None = None
        self._user_count = 0

    def enter(self, load: Callable[[], LoadedFunction]) -> LoadedFunction:
        """Return it, made on first use; each user calls `leave` when done. Others wait while it is made."""
        with self._lock:
            if self._loaded is None:
                self._loaded = load()
            self._user_count += 1
            return self._loaded

    def leave(self) -> None:
        with self._lock:
            self._user_count -= 1
            if not self._user_count and self._loaded is not None:
                self._loaded.function.close()
                self._loaded = None
