"""Binds a configuration's inputs and outputs to a program's arguments and results, as far as the file declares them."""

from __future__ import annotations

from dataclasses import dataclass

from backends.naming import Slot, all_inputs, all_outputs, positions, renamed
from backends.pytorch.exported import ExportedProgram
from backends.pytorch.program import Program
from backends.pytorch.values import DTYPES
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.completion import check_against_model
from repository.model_config import ModelConfig, ModelInput


@dataclass(frozen=True, slots=True)
class Binding:
    """`slots` are the program's arguments, `inputs` where among them each input of the configuration is."""

    slots: tuple[Slot, ...]
    inputs: dict[str, int]


def bind(config: ModelConfig, program: Program) -> Binding:
    """Raises InvalidArgument where configuration and model do not fit."""
    inputs = all_inputs(config)
    names = [entry.name for entry in inputs]
    slots = program.input_slots(names)
    required = sum(not slot.is_optional for slot in slots)
    if not required <= len(names) <= len(slots):
        provided = str(len(slots)) if required == len(slots) else f"{required} to {len(slots)}"
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects {len(names)} inputs, model provides "
            f"{provided}"
        )
    found = positions(names, slots, model=config.name, which="input", allows_order=program.allows_order)
    for entry, position in zip(inputs, found, strict=True):
        _check_input(config, entry, slots[position])
    lacking = [slot.name for index, slot in enumerate(slots) if index not in found and not slot.is_optional]
    if lacking:
        raise InvalidArgument(
            f"unable to load model '{config.name}', its configuration lacks input {', '.join(lacking)}"
        )
    if isinstance(program, ExportedProgram):
        _check_exported(config, program, dict(zip(names, found, strict=True)))
    return Binding(slots, dict(zip(names, found, strict=True)))


def output_positions(config: ModelConfig, program: Program, results: tuple[Slot, ...]) -> list[int]:
    """Where among a run's results the outputs are. Raises InvalidArgument."""
    names = [entry.name for entry in all_outputs(config)]
    return positions(names, results, model=config.name, which="output", allows_order=program.allows_order)


def _check_input(config: ModelConfig, entry: ModelInput, slot: Slot) -> None:
    is_text = entry.data_type is DataType.BYTES
    if is_text is not slot.is_text:
        expected = "a List[str]" if slot.is_text else "a tensor"
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects datatype {entry.data_type.value} for input "
            f"'{entry.name}', model takes {expected}"
        )
    if is_text and len(entry.backend_dims) + config.is_batching != 1:
        raise InvalidArgument(
            f"Triton only supports 1 dimensional List of String as input for '{entry.name}' for model '{config.name}'; "
            f"with a batch dimension that is dims: [ 1 ] reshape {{ shape: [ ] }}"
        )
    if not is_text and entry.data_type not in DTYPES:
        raise InvalidArgument(f"input '{entry.name}' type '{entry.data_type.value}' is not supported by PyTorch.")
    if entry.optional and not slot.is_optional:
        raise InvalidArgument(
            f"'optional' is set to true for input '{entry.name}' while the backend model doesn't support optional input"
        )


def _check_exported(config: ModelConfig, program: ExportedProgram, inputs: dict[str, int]) -> None:
    """An exported program says all of its tensors; the configuration may call them by any convention."""
    limit = program.largest_batch()
    if limit is not None and config.max_batch_size > limit:
        raise InvalidArgument(
            f"unable to load model '{config.name}', max_batch_size is {config.max_batch_size}, but the model was "
            f"exported for at most {limit} rows"
        )
    arguments, results = program.signature()
    outputs = dict(
        zip(
            [entry.name for entry in all_outputs(config)],
            output_positions(config, program, program.output_slots()),
            strict=True,
        )
    )
    check_against_model(config, renamed(arguments, inputs), renamed(results, outputs))
