"""The flags about loading: what they take, and what they say of the rest."""

from __future__ import annotations

import pytest

from trioton.flags.fields import UsageError, read_arguments, rows
from trioton.flags.loading import GpuLimit
from trioton.settings import Settings


def given(*arguments: str) -> Settings:
    return Settings(**read_arguments(rows(Settings), ["--model-repository=models", *arguments]))


def test_defaults() -> None:
    settings = given()
    assert (settings.model_load_thread_count, settings.model_load_retry_count) == (4, 0)
    assert (settings.model_load_gpu_limit, settings.host_policy) == ((), ())


def test_gpu_limits() -> None:
    settings = given("--model-load-gpu-limit=0:0.8", "--model-load-gpu-limit", "1:1")
    assert settings.model_load_gpu_limit == (GpuLimit(0, 0.8), GpuLimit(1, 1.0))


@pytest.mark.parametrize("text", ["", "0", "0:", ":0.5", "0:1.5", "0:-0.1", "-1:0.5", "a:0.5", "0:nan"])
def test_gpu_limits_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="option format is '<device>:<fraction>'"):
        given(f"--model-load-gpu-limit={text}")
