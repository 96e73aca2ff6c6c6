"""Which file an instance loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.interface import ModelSource
from repository.model_config import InstanceKind, ModelConfig

CONFIG = ModelConfig(
    name="m",
    default_model_filename="model.plan",
    cc_model_filenames={"7.5": "t4.plan", "9.0": "h100.plan", "8.9": "", "": "x"},
)


@pytest.mark.parametrize(
    ("kind", "capability", "filename"),
    [
        (InstanceKind.GPU, "7.5", "t4.plan"),
        (InstanceKind.GPU, "9.0", "h100.plan"),
        (InstanceKind.GPU, "8.0", "model.plan"),
        (InstanceKind.GPU, "", "model.plan"),
        (InstanceKind.GPU, "8.9", "model.plan"),
        (InstanceKind.CPU, "7.5", "model.plan"),
        (InstanceKind.MODEL, "7.5", "model.plan"),
    ],
)
def test_the_file_for_a_device(kind: InstanceKind, capability: str, filename: str) -> None:
    """`cc_model_filenames` is for instances on GPUs; what the instances of a load share stays shared."""
    source = ModelSource("m", 3, Path("/models/m"), CONFIG)
    chosen = source.for_device(kind, capability)
    assert chosen.model_file == Path("/models/m/3") / filename
    assert chosen.shared is source.shared
