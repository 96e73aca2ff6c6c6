"""Model files of `jax.export`: loading, arguments and results, and calls.

Arguments and results are the leaves of the function's pytrees, in the library's order: dictionaries by sorted keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export, tree_util

from backends.interface import ModelSource
from backends.naming import Slot
from backends.signature_backend import Signature
from protocol.datatypes import from_numpy_dtype
from protocol.errors import Internal, Unavailable, Unsupported
from repository.completion import TensorSignature

# The name that Triton's rule gives to the files of a backend of no name of its own: `model.<backend>`.
MODEL_FILE = "model.jax"

Shape = tuple[int, ...]


class ExportedFunction:
    """The function of a model's file. Where it has a `weights_file` beside it, its first positional argument is no
    input: the first `weight_count` of its leaves come from there.

    Raises:
        Unavailable: there is no file.
        Internal: it cannot be read, by this version of the library at least.
        Unsupported: the function is for several devices at once.
    """

    def __init__(self, source: ModelSource) -> None:
        path = source.version_directory / (source.config.default_model_filename or MODEL_FILE)
        if not path.is_file():
            raise Unavailable(f"unable to find '{path}' for model '{source.name}'")
        self._model = source.name
        self.exported = _read(path, source.name)
        weights_file = path.with_suffix(".npz")
        self.weights_file = weights_file if weights_file.is_file() else None
        self.weight_count = 0 if self.weights_file is None else len(self.first_argument)

    def close(self) -> None:
        """Let go of the program: the library keeps what it was asked to compile, for as long as it has room."""
        object.__setattr__(self.exported, "mlir_module_serialized", b"")

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(self.exported.platforms)

    @property
    def first_argument(self) -> dict[str, Any]:
        """Shape and dtype of the leaves of the first positional argument, by their paths in it: `dense/kernel`."""
        arguments, _ = tree_util.tree_unflatten(self.exported.in_tree, self.exported.in_avals)
        leaves, _ = tree_util.tree_flatten_with_path(arguments[:1])
        return {tree_util.keystr(path[1:], simple=True, separator="/"): aval for path, aval in leaves}

    @property
    def inputs(self) -> Sequence[Any]:
        """Shape and dtype of each argument that is no weight; sizes that vary are expressions, no `int`."""
        return tuple(self.exported.in_avals)[self.weight_count :]

    @property
    def outputs(self) -> Sequence[Any]:
        return tuple(self.exported.out_avals)

    def input_slots(self) -> tuple[Slot, ...]:
        """The names of each argument: its own, if it has one, its path, and its position. Positional arguments have no
        names in the file, but for the keys of a dictionary that is the only one."""
        arguments, keywords = _structure(self.exported.in_tree)
        weight_arguments = 0 if self.weights_file is None else 1
        is_dictionary = len(arguments) == 1 + weight_arguments and not keywords and isinstance(arguments[-1], dict)
        found: list[tuple[str, ...]] = []
        for index, argument in enumerate(arguments[weight_arguments:], weight_arguments):
            own = [(_bare(path),) if is_dictionary else () for path in _paths(argument)]
            found += [(*name, f"ARGS[{index}]{path}") for name, path in zip(own, _paths(argument), strict=True)]
        for name, argument in sorted(keywords.items()):
            found += [(name + path, f"KWARGS[{name}]{path}") for path in _paths(argument)]
        return _slots(found, "INPUT")

    def output_slots(self) -> tuple[Slot, ...]:
        found = _structure(self.exported.out_tree)
        has_names = isinstance(found, dict)
        paths = _paths(found)
        return _slots([(_bare(path), f"RESULT{path}") if has_names else (f"RESULT{path}",) for path in paths], "OUTPUT")

    def signature(self) -> Signature:
        """Names are the function's own; where it has none, `INPUT__<position>` and `OUTPUT__<position>`.

        Raises:
            Unsupported: a datatype that the protocol does not know.
        """
        return (
            [self._describe(slot, aval) for slot, aval in zip(self.input_slots(), self.inputs, strict=True)],
            [self._describe(slot, aval) for slot, aval in zip(self.output_slots(), self.outputs, strict=True)],
        )

    def _describe(self, slot: Slot, aval: Any) -> TensorSignature:
        data_type = from_numpy_dtype(aval.dtype) if isinstance(aval.dtype, np.dtype) else None
        if data_type is None:
            raise Unsupported(
                f"unable to load model '{self._model}', '{slot.name}' has the datatype {aval.dtype}, which the "
                f"protocol does not know"
            )
        return TensorSignature(slot.name, data_type, tuple(dim if isinstance(dim, int) else -1 for dim in aval.shape))

    def compile(self, shapes: Sequence[Shape], wanted: Sequence[int], device: Any, options: dict[str, Any]) -> Any:
        """What maps weights and inputs of exactly these shapes to the results at the positions `wanted`.

        Raises whatever the library raises, as where the sizes do not fit the function's symbolic dimensions.
        """
        sharding = jax.sharding.SingleDeviceSharding(device)
        all_shapes = [aval.shape for aval in self.exported.in_avals[: self.weight_count]] + list(shapes)
        given = [
            jax.ShapeDtypeStruct(shape, aval.dtype, sharding=sharding)
            for shape, aval in zip(all_shapes, self.exported.in_avals, strict=True)
        ]

        def call(*leaves: Any) -> list[Any]:
            arguments, keywords = tree_util.tree_unflatten(self.exported.in_tree, leaves)
            found = tree_util.tree_leaves(self.exported.call(*arguments, **keywords))
            return [found[position] for position in wanted]

        with jax.enable_x64(True):
            return jax.jit(call).lower(*given).compile(compiler_options=options)


def _read(path: Path, model: str) -> Any:
    content = path.read_bytes()
    try:
        exported = export.deserialize(bytearray(content))
        versions = range(
            export.minimum_supported_calling_convention_version,
            export.maximum_supported_calling_convention_version + 1,
        )
    except ImportError:
        raise
    except Exception as error:  # it takes the bytes for tables of offsets, and fails wherever these lead it
        raise Internal(
            f"failed to load model '{model}': '{path}' cannot be read as a function of jax.export by the installed jax "
            f"{jax.__version__} ({type(error).__name__}: {error}); it is to hold what `exported.serialize()` returns"
        ) from error
    if exported.calling_convention_version not in versions:
        raise Internal(
            f"failed to load model '{model}': '{path}' has the calling convention {exported.calling_convention_version}"
            f", and the installed jax {jax.__version__} knows {versions[0]} to {versions[-1]}; export it again, or "
            f"install another jax"
        )
    if exported.nr_devices != 1:
        raise Unsupported(
            f"failed to load model '{model}': '{path}' was exported for {exported.nr_devices} devices at once, and an "
            f"instance has one"
        )
    return exported


def has_own_name(slot: Slot) -> bool:
    """Whether the function itself has a name for it, beside path and position."""
    return len(slot.names) > 2


def _slots(found: Sequence[tuple[str, ...]], by_position: str) -> tuple[Slot, ...]:
    """The best name first: its own before the position, the position before the path."""
    return tuple(
        Slot((*names, f"{by_position}__{index}") if len(names) > 1 else (f"{by_position}__{index}", *names))
        for index, names in enumerate(found)
    )


def _structure(tree: Any) -> Any:
    """The tuples, lists and dictionaries that the tree describes, with something that is none of them as leaves."""
    return tree_util.tree_unflatten(tree, [...] * tree.num_leaves)


def _paths(structure: Any) -> Iterator[str]:
    leaves, _ = tree_util.tree_flatten_with_path(structure)
    for path, _leaf in leaves:
        yield "".join(f"[{tree_util.keystr((key,), simple=True)}]" for key in path)


def _bare(path: str) -> str:
    """`[image][pixels]` is called `image[pixels]`."""
    first, _, rest = path[1:].partition("]")
    return first + rest
