"""Choice of optimisation profiles: for an instance, and for a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from backends.tensorrt.description import EngineDescription, Range
from protocol.errors import InvalidArgument, ServerError
from repository.model_config import Dims, ModelConfig

# For each input its shape, for each shape tensor its values.
Extents = Mapping[str, Dims]


def profile_indices(names: Sequence[str], description: EngineDescription, *, model: str) -> tuple[int, ...]:
    """The profiles that an instance group names, each once, in their order; the first where it names none.

    Raises:
        InvalidArgument: a name that is no number, or a number that the engine does not have.
    """
    found: list[int] = []
    for name in names:
        if not name:
            raise InvalidArgument(f"profile name must not be empty (model '{model}')")
        if not (name.isascii() and name.isdigit()):
            raise InvalidArgument(f"unable to parse '{name}': expected the number of a profile (model '{model}')")
        index = int(name)
        if index >= description.profile_count:
            raise InvalidArgument(
                f"unable to autofill for '{model}', configuration specified invalid profile {name} . Number of "
                f"profiles supported by TensorRT engine: {description.profile_count}"
            )
        if index not in found:
            found.append(index)
    return tuple(found) or (0,)


def group_profiles(config: ModelConfig, description: EngineDescription) -> list[tuple[int, ...]]:
    """The profiles that the instances of each group use. Raises as `profile_indices`."""
    names = [group.profile for group in config.instance_group] or [()]
    return [profile_indices(each, description, model=config.name) for each in names]


def choose_profile(
    description: EngineDescription, profiles: Sequence[int], extents: Extents, *, model: str, instance: str
) -> int:
    """The profile that allows these shapes and is best at the nearest to them: by the sum of the differences between
    its optimum and each size. Of equals the first.

    Raises:
        InvalidArgument: none allows them. With one profile it says which input, dimension and bounds.
    """
    distances: dict[int, int] = {}
    refusal: ServerError | None = None
    for profile in profiles:
        try:
            _check(description, profile, extents, model=model, instance=instance)
        except InvalidArgument as error:
            refusal = refusal or error
        else:
            distances[profile] = _distance(description, profile, extents)
    if distances:
        return min(distances, key=distances.__getitem__)
    assert refusal is not None
    if len(profiles) == 1:
        raise refusal
    known = " ".join(f"{index}[{index}]" for index in profiles)
    raise InvalidArgument(
        f"failed to find any Optimization Profile among [ {known}] to support the requested dimensions (or shape "
        f"values); with the first of them: {refusal.message}"
    )


def is_within(description: EngineDescription, profile: int, extents: Extents) -> bool:
    """Whether a profile allows these shapes."""
    return all(
        len(extent) == len(allowed.minimum) and not list(_outside(extent, allowed))
        for extent, allowed in _pairs(description, profile, extents)
    )


def _check(description: EngineDescription, profile: int, extents: Extents, *, model: str, instance: str) -> None:
    for tensor in description.inputs:
        if tensor.name not in extents or not tensor.ranges:
            continue
        extent, allowed = extents[tensor.name], tensor.ranges[profile]
        about = f"request specifies invalid shape for input '{tensor.name}' for {instance}. Error details: model"
        if len(extent) != len(allowed.minimum):
            raise InvalidArgument(
                f"{about} expected {len(allowed.minimum)} dimensions but received {len(extent)} (model '{model}')"
            )
        for place in _outside(extent, allowed):
            what = "value" if tensor.is_shape_tensor else "shape of dimension"
            raise InvalidArgument(
                f"{about} expected the {what} {place} to be between {allowed.minimum[place]} and "
                f"{allowed.maximum[place]} but received {extent[place]} (model '{model}')"
            )


def _outside(extent: Dims, allowed: Range) -> Iterable[int]:
    bounds = zip(allowed.minimum, extent, allowed.maximum, strict=True)
    return (place for place, (least, size, most) in enumerate(bounds) if not least <= size <= most)


def _distance(description: EngineDescription, profile: int, extents: Extents) -> int:
    return sum(
        abs(size - best)
        for extent, allowed in _pairs(description, profile, extents)
        for size, best in zip(extent, allowed.optimum, strict=True)
    )


def _pairs(description: EngineDescription, profile: int, extents: Extents) -> Iterable[tuple[Dims, Range]]:
    return (
        (extents[tensor.name], tensor.ranges[profile])
        for tensor in description.inputs
        if tensor.ranges and tensor.name in extents
    )
