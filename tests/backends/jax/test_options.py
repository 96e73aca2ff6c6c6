"""What the configuration's parameters and the server's settings become, and which values are refused."""

from __future__ import annotations

import logging
import os
import re

import pytest

pytest.importorskip("jax")

import jax

from backends.jax.options import JaxOptions, read_batch_rule, read_options
from backends.jax.process_settings import DeviceSettings, ProcessSettings, read_settings
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig
from repository.shape_rules import DimRule
from tests.backends.helpers import source_of


def config(text: str = "", **parameters: str) -> ModelConfig:
    entries = [
        f"parameters {{ key: \"{key}\" value {{ string_value: '{value}' }} }}" for key, value in parameters.items()
    ]
    return source_of("\n".join(('backend: "jax"', text, *entries))).config


def test_without_parameters_all_known_shapes_are_compiled_at_load() -> None:
    assert read_options(config()) == JaxOptions(compiles_at_load=True, shape_limit=64, compiler={})


def test_parameters() -> None:
    compiler = '{"xla_a": false, "xla_b": "x"}'
    found = read_options(config(COMPILE_AT_LOAD="0", MAX_COMPILED_SHAPES="7", COMPILER_OPTIONS=compiler))
    assert found == JaxOptions(False, 7, {"xla_a": False, "xla_b": "x"})


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("COMPILE_AT_LOAD", "maybe", "failed to convert 'maybe' to boolean"),
        ("MAX_COMPILED_SHAPES", "0", "expected a number from 1 on, got '0'"),
        ("MAX_COMPILED_SHAPES", "many", "failed to convert 'many' to integral number"),
        ("COMPILER_OPTIONS", "{", "expected a JSON object, got '{'"),
        ("COMPILER_OPTIONS", "[1]", "expected a JSON object of switches, numbers and strings, got '[1]'"),
        ("COMPILER_OPTIONS", '{"a": []}', "expected a JSON object of switches"),
    ],
)
def test_other_values_are_refused(key: str, text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(f"model 'm', parameter '{key}': {says}")):
        read_options(config(**{key: text}))


@pytest.mark.parametrize(
    ("most", "padding", "buckets"),
    [(1, "", (1,)), (8, "", (1, 2, 4, 8)), (12, "powers_of_two", (1, 2, 4, 8, 12)), (12, "MAX", (12,))],
)
def test_numbers_of_rows(most: int, padding: str, buckets: tuple[int, ...]) -> None:
    assert read_batch_rule(config(f"max_batch_size: {most}", BATCH_PADDING=padding)) == DimRule(buckets=buckets)


def test_preferred_numbers_of_rows_are_those_of_the_scheduler() -> None:
    dynamic = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 3, 6 ] }"
    oldest = "max_batch_size: 8 sequence_batching { oldest { preferred_batch_size: [ 4 ] } }"
    assert read_batch_rule(config(dynamic, BATCH_PADDING="PREFERRED")) == DimRule(buckets=(3, 6, 8))
    assert read_batch_rule(config(oldest, BATCH_PADDING="PREFERRED")) == DimRule(buckets=(4, 8))
    assert read_batch_rule(config("max_batch_size: 8", BATCH_PADDING="PREFERRED")) == DimRule(buckets=(8,))


def test_no_batch_and_ragged_batches_are_not_filled_up() -> None:
    ragged = 'max_batch_size: 8 input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]'
    for each in (config(), config("max_batch_size: 8", BATCH_PADDING="NONE"), config(ragged)):
        assert read_batch_rule(each) is None


def test_the_batch_is_ruled_once() -> None:
    rules = '{"batch": {"buckets": [2, 8]}}'
    assert read_batch_rule(config("max_batch_size: 8", shape_rules=rules)) == DimRule(buckets=(2, 8))
    with pytest.raises(InvalidArgument, match="parameter 'BATCH_PADDING': the parameter 'shape_rules' has a rule"):
        read_batch_rule(config("max_batch_size: 8", shape_rules=rules, BATCH_PADDING="MAX"))
    with pytest.raises(InvalidArgument, match="expected one of POWERS_OF_TWO, PREFERRED, MAX, NONE, got 'TWICE'"):
        read_batch_rule(config("max_batch_size: 8", BATCH_PADDING="TWICE"))


def test_settings_of_the_server() -> None:
    assert read_settings({}) == DeviceSettings()
    found = read_settings(
        {"preallocate": "true", "memory-fraction": "0.5", "platforms": "cuda,cpu", "cpu-threads": "2"}
    )
    assert found == DeviceSettings(True, 0.5, "cuda,cpu", 2)
    assert found.environment == {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
        "NPROC": "2",
    }
    assert DeviceSettings().environment == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@pytest.mark.parametrize(
    ("key", "text"),
    [("preallocate", "some"), ("memory-fraction", "2"), ("memory-fraction", "half"), ("cpu-threads", "0")],
)
def test_settings_that_do_not_parse_are_refused(key: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"backend-config 'jax,{key}': .*'{text}'"):
        read_settings({key: text})


class Devices:
    """Stands for the library while it makes its devices: what it is told, and finds in the environment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.environment: dict[str, str] = {}
        self.config: dict[str, object] = {}
        self.calls = 0
        monkeypatch.setattr(jax, "devices", self._devices)
        monkeypatch.setattr(jax.config, "update", self.config.__setitem__)

    def _devices(self) -> list[object]:
        self.calls += 1
        self.environment = dict(os.environ)
        return []


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "NPROC", "JAX_CPU_ENABLE_ASYNC_DISPATCH"):
        monkeypatch.delenv(name, raising=False)
    return Devices(monkeypatch)


def test_the_library_finds_its_settings_and_a_worker_does_not(devices: Devices) -> None:
    ProcessSettings().apply(DeviceSettings(platforms="cpu", cpu_thread_count=3), "m")
    assert devices.environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert devices.environment["NPROC"] == "3"
    assert devices.config == {"jax_platforms": "cpu", "jax_cpu_enable_async_dispatch": False}
    assert "NPROC" not in os.environ
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in os.environ


def test_what_the_environment_of_the_server_says_stays(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    monkeypatch.setenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", "true")
    ProcessSettings().apply(DeviceSettings(), "m")
    assert devices.environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
    assert devices.config == {}
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"


def test_the_first_model_sets_what_all_have_and_the_log_names_another(
    devices: Devices, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ProcessSettings()
    settings.apply(DeviceSettings(cpu_thread_count=3), "first")
    settings.apply(DeviceSettings(cpu_thread_count=3), "second")
    assert caplog.records == []
    with caplog.at_level(logging.WARNING, "trioton.jax"):
        settings.apply(DeviceSettings(cpu_thread_count=4), "third")
    assert devices.calls == 1
    assert "model 'third' wants" in caplog.text
