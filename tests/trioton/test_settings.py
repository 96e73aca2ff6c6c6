"""The settings: Triton's defaults, the parsers of single flags, and combinations that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trioton.flags.demo import DemoSettings
from trioton.flags.fields import UsageError, rows, seconds
from trioton.settings import Settings

MODELS = (Path("/models"),)


def test_defaults_are_those_of_triton() -> None:
    """But for the name, which is our own."""
    settings = Settings(model_repository=MODELS)
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (8000, 8001, 8002)
    assert settings.http_max_input_size == 67108864
    assert (settings.exit_timeout_secs, settings.model_load_thread_count, settings.metrics_interval_ms) == (30, 4, 2000)
    assert settings.exit_on_error
    assert settings.strict_readiness
    assert not settings.disable_auto_complete_config
    assert (settings.model_control_mode, settings.log_verbose, settings.log_format) == ("none", 0, "default")
    assert settings.id == "trioton"


def test_services_in_the_order_in_which_they_open() -> None:
    """Metrics follow the address of HTTP where they have none of their own."""
    settings = Settings(model_repository=MODELS, http_address="127.0.0.1", grpc_address="::1", grpc_port=9)
    assert list(settings.services().items()) == [
        ("grpc", ("::1", 9)),
        ("http", ("127.0.0.1", 8000)),
        ("metrics", ("127.0.0.1", 8002)),
    ]
    assert list(Settings(model_repository=MODELS, allow_http=False, allow_metrics=False).services()) == ["grpc"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"model_repository": ()}, "--model-repository is required"),
        (
            {"load_model": ("a",)},
            r"Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well\.",
        ),
        ({"model_control_mode": "explicit", "load_model": ("a", "*")}, r"Wildcard '\*'"),
        ({"http_port": 8001}, "--grpc-port and --http-port are both 8001 on 0.0.0.0: each needs a port of its own"),
        ({"metrics_port": 8000, "metrics_address": "127.0.0.1"}, "--http-port and --metrics-port are both 8000"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], text: str) -> None:
    """A server cannot be made from settings that cannot be."""
    with pytest.raises(UsageError, match=text):
        Settings(**{"model_repository": MODELS, **values})


@pytest.mark.parametrize(
    "values",
    [
        {"http_port": 0, "grpc_port": 0, "metrics_port": 0},
        {"http_port": 8001, "allow_http": False},
        {"http_address": "127.0.0.1", "grpc_address": "127.0.0.2", "http_port": 8001},
    ],
)
def test_ports_that_do_not_clash(values: dict[str, Any]) -> None:
    """Port 0, a service that is switched off, and other addresses are no clash."""
    settings = Settings(model_repository=MODELS, **values)
    assert "grpc" in settings.services()


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("15", 15.0), ("0.25", 0.25), ("-1", 0.0)])
def test_seconds(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "nan", "inf", "15s"])
def test_wrong_seconds(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number of seconds"):
        seconds(text)


@pytest.mark.parametrize("holder", [Settings, DemoSettings])
def test_every_flag_is_complete(holder: type[Any]) -> None:
    """Each row has a group, a help text that is a sentence, and a word for its value; no name is used twice."""
    table = rows(holder)
    names = [name for row in table for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))
    for row in table:
        assert row.group
        assert row.help.endswith("."), row.name
        assert bool(row.metavar) != row.is_switch, row.name
