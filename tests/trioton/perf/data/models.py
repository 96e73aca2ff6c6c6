"""Descriptions of models that data is made for."""

from __future__ import annotations

from typing import Any

from trioton.perf.caller import ModelDescription
from trioton.perf.data.inputs import ModelSlots, slots_of


def described(*inputs: tuple[str, str, list[int]], batch: int = 0, **config: Any) -> ModelDescription:
    """A model with inputs of name, datatype and dims, and an output `OUT` of FP32 [2]."""
    entries = [{"name": name, "data_type": f"TYPE_{datatype}", "dims": dims} for name, datatype, dims in inputs]
    output = [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}]
    return ModelDescription("m", config={"max_batch_size": batch, "input": entries, "output": output, **config})


def slots(*inputs: tuple[str, str, list[int]], batch: int = 0) -> ModelSlots:
    return slots_of(described(*inputs, batch=batch))
