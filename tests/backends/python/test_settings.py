"""Reading the backend's options."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backends.interface import ModelSource
from backends.python.settings import PythonSettings
from protocol.errors import InvalidArgument, Unsupported
from tests.backends.python.models import CONFIG, parameters

MIB = 1 << 20


def read(settings: dict[str, str] | None = None, **model_parameters: str) -> PythonSettings:
    config = msgspec.structs.replace(CONFIG, parameters=parameters(**model_parameters))
    return PythonSettings.of(ModelSource("m", 1, Path("/nowhere"), config, settings or {}))


def test_settings_and_their_defaults() -> None:
    """Options of Triton's that mean nothing here are accepted."""
    assert read({"shm-region-prefix-name": "x", "stub-timeout-seconds": "3"}) == PythonSettings()
    sizes = {"shm-default-byte-size": "2097152", "shm-growth-byte-size": "5", "shm-limit-byte-size": "3000000"}
    assert read(sizes) == PythonSettings(2 * MIB, 5, 3000000, False)
    assert read({"shm-default-byte-size": str(1 << 30)}).shm_limit_byte_size == 1 << 30


def test_inline_is_the_models_choice_before_the_servers() -> None:
    assert read({"inline-tensors": "true"}).is_inline
    assert read(INLINE_TENSORS="1").is_inline
    assert not read({"inline-tensors": "true"}, INLINE_TENSORS="off").is_inline


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shm-default-byte-size": "1000"}, "shm-default-byte-size can't be smaller than 4 MiBs"),
        ({"shm-growth-byte-size": "0"}, "shm-growth-byte-size can't be smaller than or equal to zero."),
        (
            {"shm-limit-byte-size": "7"},
            "model 'm': backend setting 'shm-limit-byte-size' must be at least 1048576, got 7",
        ),
        ({"shm-growth-byte-size": "x"}, "model 'm': backend setting 'shm-growth-byte-size': failed to convert 'x'"),
        ({"inline-tensors": "perhaps"}, "failed to convert 'perhaps' to boolean"),
    ],
)
def test_values_that_cannot_be(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        read(settings)
    assert message in failure.value.message


def test_force_cpu_only_input_tensors() -> None:
    assert read(FORCE_CPU_ONLY_INPUT_TENSORS="yes") == PythonSettings()
    assert read(FORCE_CPU_ONLY_INPUT_TENSORS="no") == PythonSettings(force_cpu_inputs=False)
    with pytest.raises(Unsupported, match="Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'"):
        read(FORCE_CPU_ONLY_INPUT_TENSORS="maybe")
