"""Inputs of a source: from its file, from flags or from samples, whichever knows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.datatypes import from_numpy_dtype
from trioton.convert.tensors import Array, Description, TensorSpec
from trioton.flags.fields import UsageError

DEFAULT_BATCH = 8


def described(
    told: Sequence[TensorSpec],
    given: Sequence[TensorSpec],
    samples: Sequence[Mapping[str, Array]],
    max_batch_size: int | None,
) -> tuple[Description, int]:
    """The inputs, and the largest batch (0: no batch dimension).

    `told` are inputs as the source has them, with the batch dimension; `given` those of flags, without it; `samples`
    arrays whose first dimension counts the samples.

    Raises:
        UsageError: nothing tells the inputs, or what does contradicts itself.
    """
    if given:
        _check_names("--input", [spec.name for spec in given], told)
        largest = DEFAULT_BATCH if max_batch_size is None else max_batch_size
        return Description(tuple(given), largest > 0), largest
    if told and all(spec.datatype for spec in told):
        return _of_source(told, max_batch_size)
    if samples:
        largest = DEFAULT_BATCH if max_batch_size is None else max_batch_size
        specs = _of_samples(samples)
        _check_names("--samples", [spec.name for spec in specs], told)
        return Description(specs, largest > 0), largest
    names = ", ".join(spec.name for spec in told)
    raise UsageError(
        f"the source does not tell the datatypes and shapes of its inputs{f' ({names})' if names else ''}: give "
        "samples with --samples, or each input as --input <name>:<type>:<dims>"
    )


def _of_source(told: Sequence[TensorSpec], max_batch_size: int | None) -> tuple[Description, int]:
    can_batch = all(spec.dims and isinstance(spec.dims[0], str) for spec in told)
    if max_batch_size and not can_batch:
        shapes = ", ".join(f"{spec.name} {list(spec.dims)}" for spec in told)
        raise UsageError(
            f"--max-batch-size: the source's first dimensions do not vary ({shapes}); 0 is for such a model"
        )
    largest = (DEFAULT_BATCH if can_batch else 0) if max_batch_size is None else max_batch_size
    if largest == 0:
        return Description(tuple(told), False), 0
    return Description(tuple(TensorSpec(spec.name, spec.datatype, spec.dims[1:]) for spec in told), True), largest


def _of_samples(samples: Sequence[Mapping[str, Array]]) -> tuple[TensorSpec, ...]:
    """What differs between files of samples varies."""
    specs = []
    for name, array in samples[0].items():
        shapes = [each[name].shape[1:] for each in samples]
        if len({len(shape) for shape in shapes}) > 1:
            raise UsageError(f"--samples: '{name}' has different numbers of dimensions: {', '.join(map(str, shapes))}")
        dims = tuple(sizes[0] if len(set(sizes)) == 1 else _symbol(sizes) for sizes in zip(*shapes, strict=True))
        specs.append(TensorSpec(name, _datatype(name, array), dims))
    return tuple(specs)


def _symbol(sizes: Sequence[int]) -> str:
    """Dimensions whose sizes are the same in all samples have one name."""
    return "size_" + "_".join(map(str, sizes))


def _check_names(flag: str, names: Sequence[str], told: Sequence[TensorSpec]) -> None:
    known = [spec.name for spec in told]
    strange = [name for name in names if known and name not in known]
    if strange:
        raise UsageError(f"{flag}: the source has no input '{strange[0]}'; it has {', '.join(known)}")


def _datatype(name: str, array: Array) -> str:
    datatype = from_numpy_dtype(array.dtype)
    if datatype is None:
        raise UsageError(f"--samples: '{name}' is of numpy's dtype {array.dtype}, which is no datatype of the protocol")
    return datatype.name
