"""Program: the interface of a loaded torch model, whatever its file format.

A program belongs to one instance and its thread, unless instances share it (`ENABLE_WEIGHT_SHARING`).
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from backends.naming import Slot
from backends.pytorch.values import Value
from backends.signature_backend import Signature


@dataclass(frozen=True, slots=True)
class Results:
    """What a run has given, in the order of `slots`. Programs that always give the same give the same `slots`."""

    values: Sequence[Value]
    slots: tuple[Slot, ...]


class Program(abc.ABC):
    """Subclasses load in their constructors, within `backends.pytorch.errors.load_errors`."""

    # Whether names that fit no other convention are taken in the configuration's order.
    allows_order = True

    @abc.abstractmethod
    def input_slots(self, names: Sequence[str]) -> tuple[Slot, ...]:
        """The arguments; `names` are the inputs of the configuration, for a model that takes whatever it gets."""

    @abc.abstractmethod
    def output_slots(self) -> tuple[Slot, ...] | None:
        """The results, as far as the file tells; else a run does."""

    @abc.abstractmethod
    def run(self, slots: Sequence[Slot], values: Sequence[Value | None]) -> Results:
        """Call the model with a value for each of `input_slots`; None only for those that are optional.

        Raises:
            Internal: it gave something that is neither tensors nor strings.
            Exception: whatever the library raises.
        """

    def tensors(self) -> Iterable[torch.Tensor]:
        """The model's own tensors: parameters, buffers and constants."""
        return ()

    def signature(self) -> Signature | None:
        """Names, datatypes and shapes, where the file tells all of them."""
        return None
