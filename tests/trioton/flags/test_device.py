"""The flags about GPUs: what they take, and where it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.devices.devices import Devices
from trioton.flags.device import PoolSize
from trioton.flags.fields import UsageError, read_arguments, rows
from trioton.server import Server
from trioton.settings import Settings


def given(*arguments: str) -> Settings:
    return Settings(**read_arguments(rows(Settings), ["--model-repository=models", *arguments]))


def test_defaults() -> None:
    settings = given()
    assert (settings.pinned_memory_pool_byte_size, settings.cuda_memory_pool_byte_size) == (268435456, ())
    assert (settings.min_supported_compute_capability, settings.enable_peer_access) == (6.0, True)


def test_values(tmp_path: Path) -> None:
    settings = given(
        f"--model-repository={tmp_path}",
        "--pinned-memory-pool-byte-size=0",
        "--cuda-memory-pool-byte-size=0:1024",
        "--cuda-memory-pool-byte-size",
        "1:0",
        "--min-supported-compute-capability=7.5",
        "--enable-peer-access=false",
    )
    assert settings.cuda_memory_pool_byte_size == (PoolSize(0, 1024), PoolSize(1, 0))
    assert settings.min_supported_compute_capability == 7.5
    devices = Server(settings).core.devices
    assert isinstance(devices, Devices)
    assert devices.pinned.limit == 0
    assert devices.pool_bytes(0) == 1024
    assert devices.pool_bytes(1) == 0
    assert devices.pool_bytes(2) == 64 << 20


@pytest.mark.parametrize("text", ["", "0", "0:", ":1", "0:1.5", "-1:5", "a:5", "0:-5"])
def test_pool_sizes_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="option format is '<device>:<bytes>'"):
        given(f"--cuda-memory-pool-byte-size={text}")


@pytest.mark.parametrize("text", ["", "a", "-1", "nan", "inf"])
def test_capabilities_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected a compute capability such as 7\.5"):
        given(f"--min-supported-compute-capability={text}")
