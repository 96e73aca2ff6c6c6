"""Base class of backends whose model files declare their inputs and outputs (signatures)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import trio

from backends.interface import Backend, ModelSource
from backends.parameters import parse_int
from backends.requirements import framework_missing
from repository.completion import (
    DEFAULT_MAX_BATCH_SIZE,
    TensorSignature,
    check_against_model,
    complete_from_model,
)
from repository.model_config import ModelConfig

Signature: TypeAlias = tuple[Sequence[TensorSignature], Sequence[TensorSignature]]
"""The inputs and the outputs of a model as its own file tells them."""


class SignatureBackend(Backend):
    """A backend that may implement `signature`. An ImportError that leaves it becomes the sentence that says what to
    install."""

    @classmethod
    def signature(cls, source: ModelSource) -> Signature | None:
        """The inputs and outputs that the model's file declares; None if files of this framework do not say.

        Called before any instance exists, in a thread of no instance, and only if the configuration lacks inputs
        or outputs, or `trioton doctor` asks. Shapes are whole, the batch dimension included, -1 where variable.

        Raises:
            ServerError: the file cannot be read.
            ImportError: the framework is not installed.
        """
        return None

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Complete inputs, outputs and batching from `signature`. Cancelled: leaves the reading to its thread."""
        config = source.config
        if config.input and config.output:
            return config
        found = await trio.to_thread.run_sync(cls._read_signature, source, abandon_on_cancel=True)
        if found is None:
            return config
        inputs, outputs = found
        return complete_from_model(
            config, inputs=inputs, outputs=outputs, default_max_batch_size=default_max_batch_size(source)
        )

    @classmethod
    async def check_model(cls, source: ModelSource) -> None:
        """Compare the configuration with `signature`."""
        found = await trio.to_thread.run_sync(cls._read_signature, source, abandon_on_cancel=True)
        if found is not None:
            check_against_model(source.config, *found)

    @classmethod
    def _read_signature(cls, source: ModelSource) -> Signature | None:
        try:
            return cls.signature(source)
        except ImportError as error:
            raise framework_missing(source.config.backend, model=source.name, error=error) from error


def default_max_batch_size(source: ModelSource) -> int:
    """What a model batches by that can, and does not say how far."""
    value = source.settings.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE))
    return parse_int(value, place=f"model '{source.name}', backend-config 'default-max-batch-size'")
