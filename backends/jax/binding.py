"""Binds a configuration's inputs and outputs to the arguments and results of a function, and validates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backends.jax.exported import ExportedFunction, has_own_name
from backends.jax.shapes import check_batch
from backends.naming import Slot, all_inputs, all_outputs, positions, renamed
from protocol.errors import InvalidArgument
from repository.completion import check_against_model
from repository.model_config import ModelConfig


class Binding:
    """`inputs` are the configuration's names in the function's order, `results` the positions of its outputs. Scalars
    have no dimension in the function, and are one element in the configuration.

    Raises:
        InvalidArgument: the two do not fit.
        Unsupported: a datatype that the protocol does not know.
    """

    def __init__(self, config: ModelConfig, function: ExportedFunction) -> None:
        arguments, results = function.signature()
        input_names = [entry.name for entry in all_inputs(config)]
        output_names = [entry.name for entry in all_outputs(config)]
        if len(input_names) != len(arguments):
            raise InvalidArgument(
                f"unable to load model '{config.name}', configuration expects {len(input_names)} inputs, model "
                f"provides {len(arguments)}"
            )
        taken = _positions(input_names, function.input_slots(), config, "input")
        given = _positions(output_names, function.output_slots(), config, "output")
        check_against_model(config, renamed(arguments, taken), renamed(results, given))
        input_avals = {name: function.inputs[position] for name, position in taken.items()}
        output_avals = {name: function.outputs[position] for name, position in given.items()}
        check_batch(config, input_avals, output_avals)
        self.inputs = tuple(sorted(taken, key=lambda name: taken[name]))
        self.results = tuple(given[name] for name in output_names)
        self.scalar_inputs = frozenset(name for name, aval in input_avals.items() if not aval.shape)
        self.scalar_outputs = frozenset(name for name, aval in output_avals.items() if not aval.shape)


def _positions(names: Sequence[str], slots: Sequence[Slot], config: ModelConfig, which: str) -> Mapping[str, int]:
    # Where the function has names for all, another one is a mistake.
    has_names = all(has_own_name(slot) for slot in slots)
    found = positions(names, slots, model=config.name, which=which, allows_order=not has_names)
    return dict(zip(names, found, strict=True))
