"""The limit of a GPU's memory, read from a driver that is made up; not seen running on a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from actors.lifecycle.gpu_limits import check_gpu_limits
from protocol.errors import Unavailable
from repository.model_config import InstanceKind, ModelConfig, ModelInstanceGroup
from tests.trioton.test_gpus import Driver


def model(*gpus: int, kind: InstanceKind = InstanceKind.GPU) -> ModelConfig:
    return ModelConfig(name="m", instance_group=(ModelInstanceGroup(name="m_0", kind=kind, gpus=gpus, count=1),))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """40 % of GPU 0 are used, 90 % of GPU 1."""
    made = Driver(2)
    made.answers["nvmlDeviceGetMemoryInfo"] = lambda index: SimpleNamespace(total=1000, used=(400, 900)[index])
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        (model(0), {0: 0.4}),
        (model(0), {0: 0.5, 1: 0.5}),
        (model(1), {0: 0.1}),
        (model(0, 1), {}),
        (model(kind=InstanceKind.CPU), {0: 0.0}),
    ],
)
def test_models_within_the_limits(driver: Driver, config: ModelConfig, limits: dict[int, float]) -> None:
    check_gpu_limits(config, limits)
    assert driver.calls.count("nvmlInit") == driver.calls.count("nvmlShutdown")


def test_a_gpu_that_is_too_full(driver: Driver) -> None:
    with pytest.raises(Unavailable) as refused:
        check_gpu_limits(model(0, 1), {0: 0.5, 1: 0.75})
    assert str(refused.value) == (
        "can not create model 'm': memory limit set for GPU 1 has exceeded, model loading is rejected. 900 of 1000 "
        "bytes are used, the limit is 0.75 of them"
    )
    assert driver.calls[-1] == "nvmlShutdown"


@pytest.mark.parametrize("refused", ["nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_a_driver_that_does_not_tell_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver(2, refused))
    check_gpu_limits(model(0), {0: 0.0})
    assert "model 'm': the memory limit of GPU 0 is not checked" in caplog.text


def test_without_the_drivers_library(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    check_gpu_limits(model(0), {0: 0.0})
    assert "is not checked" in caplog.text
