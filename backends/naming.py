"""Maps tensor names of a configuration to the arguments and results of a model.

Source: the naming conventions of Triton's pytorch backend, tried in order and for all names together:

1. the model's own names, where its file has them: arguments, keys of dictionaries, fields of named tuples, and paths
   as Triton has them for compiled models (`ARGS[0]`, `KWARGS[x]`, `RESULT[y]`);
2. `<name>__<index>`: the digits after the first double underscore are the position;
3. the order of the configuration.

For backends whose models have arguments and results without names of their own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from protocol.errors import InvalidArgument
from repository.completion import TensorSignature
from repository.model_config import ModelConfig, ModelInput, ModelOutput
from repository.sequence_tensors import control_inputs, hidden_outputs, state_inputs
from repository.shape_rules import generated_inputs

logger = logging.getLogger("trioton.naming")

_INDEXED = re.compile(r".*?__(\d+)")


@dataclass(frozen=True, slots=True)
class Slot:
    """One argument or result: all names that the model has for it. One that is `optional` has a default value, and
    `is_text` one that takes or gives a list of strings."""

    names: tuple[str, ...]
    is_optional: bool = False
    is_text: bool = False

    @property
    def name(self) -> str:
        return self.names[0] if self.names else ""


def index_of(name: str) -> int | None:
    """The position that a name of the form `<name>__<index>` gives, as of `INPUT__0`."""
    found = _INDEXED.fullmatch(name)
    return int(found[1]) if found else None


def positions(
    names: Sequence[str], slots: Sequence[Slot], *, model: str, which: str, allows_order: bool = True
) -> list[int]:
    """The position of the slot that each name means. `which` is `input` or `output`, for the texts.

    Raises:
        InvalidArgument: a position is not there or is meant twice; there are more names than slots; or no convention
            fits and `allows_order` is false.
    """
    by_name = {name: position for position, slot in enumerate(slots) for name in slot.names}
    if all(name in by_name for name in names):
        found = [by_name[name] for name in names]
    else:
        indices = [index_of(name) for name in names]
        found = [index for index in indices if index is not None]
        if len(found) < len(names):
            if not allows_order or len(names) > len(slots):
                raise _unexpected(names, slots, model=model, which=which)
            found = list(range(len(names)))
            strange = [name for name in names if name not in by_name]
            if 0 < len(strange) < len(names):
                logger.warning(
                    "model '%s': it has no %s '%s', so its %ss are taken in the order of the configuration, whatever "
                    "their names",
                    *(model, which, strange[0], which),
                )
    for name, position in zip(names, found, strict=True):
        if position >= len(slots):
            raise InvalidArgument(
                f"model '{model}': {which} '{name}' in the model configuration refers to an {which} index which "
                f"doesn't exist. This model has {len(slots)} {which}s"
            )
        if found.count(position) > 1:
            raise InvalidArgument(f"model '{model}': {which} '{name}' has the position {position}, as another one")
    return found


def _unexpected(names: Sequence[str], slots: Sequence[Slot], *, model: str, which: str) -> InvalidArgument:
    known = {name for slot in slots for name in slot.names}
    unknown = [name for name in names if name not in known]
    wrong = unknown[0] if known and unknown else names[min(len(slots), len(names) - 1)]
    allowed = ", ".join(slot.name or f"{which.upper()}__{position}" for position, slot in enumerate(slots))
    return InvalidArgument(
        f"model '{model}': unexpected inference {which} '{wrong}', allowed {which}s are: {allowed}, or {which}s named "
        f"<name>__<index>"
    )


def all_inputs(config: ModelConfig) -> tuple[ModelInput, ...]:
    """What a model gets in a run: inputs of requests, of sequences, and those made for a batch."""
    made = (ModelInput(name=name, data_type=kind, dims=(-1,)) for name, kind in generated_inputs(config).items())
    return (*config.input, *control_inputs(config), *state_inputs(config), *made)


def all_outputs(config: ModelConfig) -> tuple[ModelOutput, ...]:
    """What is wanted of a run: for clients, and for the next step of a sequence."""
    return (*config.output, *hidden_outputs(config))


def renamed(tensors: Sequence[TensorSignature], names: Mapping[str, int]) -> list[TensorSignature]:
    """The tensors at the positions that `names` has, under the names of the configuration."""
    return [replace(tensors[position], name=name) for name, position in names.items()]
