"""TorchScript models (`torch.jit.save`). The file tells names and kinds of arguments, no datatypes and no shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from backends.naming import Slot
from backends.pytorch.program import Program, Results
from backends.pytorch.values import Value
from protocol.errors import Internal

_ONE = (Slot(()),)


class TorchScriptProgram(Program):
    """`takes_dictionary`: its only argument is a Dict(str, Tensor), whose keys are the configuration's names."""

    def __init__(self, path: Path, device: torch.device | None) -> None:
        self._module: Any = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
        self._module.eval()
        arguments = self._module.forward.schema.arguments[1:]
        (result,) = self._module.forward.schema.returns
        self._result_type = result.type
        self.takes_dictionary = len(arguments) == 1 and _is_dictionary(arguments[0].type)
        self._slots = () if self.takes_dictionary else tuple(_argument_slots(arguments))
        # What stands for an Optional[Tensor] that has no default value of its own.
        self._absent: dict[str, Value | None] = {
            each.name: None for each in arguments if each.type.kind() == "OptionalType" and not each.has_default_value()
        }

    def input_slots(self, names: Sequence[str]) -> tuple[Slot, ...]:
        return tuple(Slot((name,), is_optional=True) for name in names) if self.takes_dictionary else self._slots

    def output_slots(self) -> tuple[Slot, ...] | None:
        kind = self._result_type
        if kind.kind() == "TensorType" or _is_text(kind):
            return _ONE
        return _ONE * len(kind.elements()) if kind.kind() == "TupleType" else None

    def run(self, slots: Sequence[Slot], values: Sequence[Value | None]) -> Results:
        given = {slot.name: value for slot, value in zip(slots, values, strict=True) if value is not None}
        if self.takes_dictionary:
            return _results(self._module(given))
        return _results(self._module(**(self._absent | given)))

    def tensors(self) -> Iterable[torch.Tensor]:
        yield from self._module.parameters()
        yield from self._module.buffers()


def _argument_slots(arguments: Sequence[Any]) -> Iterator[Slot]:
    """Arguments of other types are left at their default values, if they have one."""
    for argument in arguments:
        kind = argument.type.kind()
        inner = argument.type.getElementType() if kind == "OptionalType" else argument.type
        if inner.kind() == "TensorType" or _is_text(inner):
            has_default = argument.has_default_value()
            yield Slot((argument.name,), is_optional=has_default or kind == "OptionalType", is_text=_is_text(inner))
        elif _is_dictionary(inner):
            raise Internal(
                "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
                "supported."
            )
        elif not argument.has_default_value():
            raise Internal(
                f"An input of type '{argument.type}' was detected in the model. Only a single input of type Dict(str, "
                f"Tensor) or input(s) of type Tensor are supported. (argument '{argument.name}')"
            )


def _is_text(kind: Any) -> bool:
    return bool(kind.kind() == "ListType" and kind.getElementType().kind() == "StringType")


def _is_dictionary(kind: Any) -> bool:
    return bool(kind.kind() == "DictType" and kind.getValueType().kind() == "TensorType")


def _results(found: Any) -> Results:
    if isinstance(found, torch.Tensor):
        return Results((found,), _ONE)
    if isinstance(found, dict):
        values = tuple(_value(value, f" at key '{key}'") for key, value in found.items())
        return Results(values, tuple(Slot((str(key),)) for key in found))
    if isinstance(found, tuple) or (isinstance(found, list) and found and isinstance(found[0], torch.Tensor)):
        names = getattr(found, "_fields", ())
        slots = tuple(Slot((name,)) for name in names) or _ONE * len(found)
        return Results(tuple(_value(value, f" at index {index}") for index, value in enumerate(found)), slots)
    return Results((_value(found, ""),), _ONE)


def _value(found: Any, place: str) -> Value:
    if isinstance(found, torch.Tensor):
        return found
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return found
    raise Internal(
        f"PyTorch execute failure: output{place} must be of type Tensor or List[str], received {type(found).__name__}"
    )
