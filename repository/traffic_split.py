"""Traffic split: a model name whose requests are distributed over weighted models or versions (A/B, canary, shadow).

It is a model directory of its own whose configuration says so, and no more:

    backend: "traffic_split"
    parameters { key: "split" value { string_value:
      '{ "targets": [ { "model": "m", "version": 1, "weight": 95 }, { "model": "m", "version": 2, "weight": 5 } ],
         "shadows": [ { "model": "m", "version": 3, "percent": 10 } ],
         "sticky": "user" }' } }

`version` -1, the default, is the latest; what it is, is looked up for each request. A load call with another
configuration changes the split while it serves.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from protocol.errors import InvalidArgument
from protocol.messages import LATEST_VERSION
from repository.model_config import ModelConfig, ModelInput, ModelOutput

BACKEND = "traffic_split"
PARAMETER = "split"
LARGEST_WEIGHT = 1_000_000
# What a configuration of a split may set.
_OWN_FIELDS = frozenset({"name", "backend", "parameters", "metric_tags", "version_policy"})


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Target(_Part, frozen=True):
    """A target that gets `weight` of all requests, in proportion to the sum of weights."""

    model: str
    version: int = LATEST_VERSION
    weight: int = 1


class Shadow(_Part, frozen=True):
    """A shadow target that gets a copy of `percent` of all requests; its responses are dropped."""

    model: str
    version: int = LATEST_VERSION
    percent: float = 100.0


class TrafficSplitConfig(_Part, frozen=True):
    """`sticky` names a parameter of the request: those with equal values go to the same target. Requests of one
    sequence always do."""

    targets: tuple[Target, ...]
    shadows: tuple[Shadow, ...] = ()
    sticky: str = ""
    max_shadow_requests: int = 16

    @property
    def model_names(self) -> tuple[str, ...]:
        """The models that take part, each once."""
        return tuple(dict.fromkeys(part.model for part in self.parts))

    @property
    def parts(self) -> tuple[Target | Shadow, ...]:
        """The targets and then the shadows."""
        return (*self.targets, *self.shadows)


_decoder = msgspec.json.Decoder(TrafficSplitConfig)


def is_split(config: ModelConfig) -> bool:
    return config.backend == BACKEND


def split_of(config: ModelConfig) -> TrafficSplitConfig:
    """The split of a configuration that is known to be good, completed or not."""
    return _decoder.decode(config.parameter(PARAMETER))


def read_split(config: ModelConfig) -> TrafficSplitConfig:
    """The split of a configuration, judged without its targets.

    Raises:
        InvalidArgument: what is missing, unknown or wrong, and where.
    """
    where = f"traffic split '{config.name}'"
    default = ModelConfig()
    for field in ModelConfig.__struct_fields__:
        if field not in _OWN_FIELDS and getattr(config, field) != getattr(default, field):
            raise InvalidArgument(f"{where} cannot have '{field}': that is for the models that it sends requests to")
    text = config.parameter(PARAMETER)
    if not text:
        raise InvalidArgument(f"{where} needs the parameter '{PARAMETER}', a JSON object with 'targets'")
    try:
        split = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{where}: parameter '{PARAMETER}': {error}") from None
    parts: list[tuple[str, Target | Shadow]] = [
        *((f"targets[{number}]", target) for number, target in enumerate(split.targets)),
        *((f"shadows[{number}]", shadow) for number, shadow in enumerate(split.shadows)),
    ]
    for place, part in parts:
        if not part.model:
            raise InvalidArgument(f"{where}: {place}.model is empty")
        if part.model == config.name:
            raise InvalidArgument(f"{where}: {place}.model is the split itself")
        if part.version < 1 and part.version != LATEST_VERSION:
            raise InvalidArgument(
                f"{where}: {place}.version is {part.version}; expected 1 or more, or -1 for the latest"
            )
        if isinstance(part, Target) and not 0 <= part.weight <= LARGEST_WEIGHT:
            raise InvalidArgument(f"{where}: {place}.weight is {part.weight}; expected 0 to {LARGEST_WEIGHT}")
        if isinstance(part, Shadow) and not 0 <= part.percent <= 100:
            raise InvalidArgument(f"{where}: {place}.percent is {part.percent:g}; expected 0 to 100")
    if not sum(target.weight for target in split.targets):
        raise InvalidArgument(f"{where}: no target has a weight above 0, so nobody would answer")
    if split.max_shadow_requests < 1:
        raise InvalidArgument(f"{where}: max_shadow_requests is {split.max_shadow_requests}; expected 1 or more")
    return split


def completed_split(config: ModelConfig, split: TrafficSplitConfig, served: Sequence[ModelConfig]) -> ModelConfig:
    """The configuration that clients see: inputs, outputs and kind of answers as the targets and shadows have them.

    `served` are the configurations of the targets and then the shadows, in order.

    Raises:
        InvalidArgument: they differ, so a client could not know whom it talks to.
    """
    first = served[0]
    names = [f"{part.model}:{part.version}" for part in split.parts]
    for name, other in zip(names[1:], served[1:], strict=True):
        for what, own, theirs in (
            ("inputs", _tensors(first.input), _tensors(other.input)),
            ("outputs", _tensors(first.output), _tensors(other.output)),
            ("batch dimension", first.is_batching, other.is_batching),
            ("decoupled", first.is_decoupled, other.is_decoupled),
            ("sequence batching", first.sequence_batching is not None, other.sequence_batching is not None),
        ):
            if own != theirs:
                raise InvalidArgument(
                    f"traffic split '{config.name}': {names[0]} and {name} differ in their {what}: {own} and {theirs}"
                )
    return msgspec.structs.replace(
        config,
        max_batch_size=min(each.max_batch_size for each in served),
        input=first.input,
        output=first.output,
        model_transaction_policy=first.model_transaction_policy,
    )


def _tensors(tensors: Sequence[ModelInput] | Sequence[ModelOutput]) -> list[str]:
    """What two tensors must agree in, in whatever order."""
    return sorted(f"{tensor.name} {tensor.data_type.value} {list(tensor.dims)}" for tensor in tensors)
