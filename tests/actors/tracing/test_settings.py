"""What clients and flags may say about tracing: values, texts of refusals, and what follows what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from actors.tracing.settings import (
    Changes,
    ExportSettings,
    changed,
    followed,
    invalid_reason,
    parse_changes,
)
from protocol.errors import InvalidArgument, Unsupported
from protocol.server_settings import TraceSettings

TRACING = TraceSettings(level=("TIMESTAMPS",), rate=1, file="t.json")


@pytest.mark.parametrize(
    ("given", "values", "cleared"),
    [
        ({}, {}, set()),
        ({"trace_level": ["OFF"]}, {"level": ("OFF",)}, set()),
        ({"trace_level": ["TENSORS", "TIMESTAMPS"]}, {"level": ("TIMESTAMPS", "TENSORS")}, set()),
        ({"trace_level": ["TIMESTAMPS", "TIMESTAMPS"]}, {"level": ("TIMESTAMPS",)}, set()),
        ({"trace_level": ["timestamps", "MAX"]}, {}, set()),
        ({"trace_level": []}, {}, set()),
        ({"trace_level": ["MAX", "TENSORS"]}, {"level": ("TENSORS",)}, set()),
        ({"trace_rate": ["5"], "trace_count": ["-1"]}, {"rate": 5, "count": -1}, set()),
        ({"trace_rate": ["4294967295"]}, {"rate": 4294967295}, set()),
        ({"trace_count": ["2147483647"]}, {"count": 2147483647}, set()),
        ({"log_frequency": ["+7"]}, {"log_frequency": 7}, set()),
        ({"trace_rate": None, "trace_level": None}, {}, {"rate", "level"}),
        ({"trace_mode": ["triton"], "colour": ["red"]}, {}, set()),
    ],
)
def test_changes_are_read(given: dict[str, Sequence[str] | None], values: dict[str, object], cleared: set[str]) -> None:
    """By their names on the wire; names and levels that are none are ignored."""
    assert parse_changes(given) == Changes(values, frozenset(cleared))


@pytest.mark.parametrize(
    ("name", "texts", "message"),
    [
        ("trace_level", ["OFF", "TENSORS"], "Expect only one trace level 'OFF' is specified"),
        ("trace_rate", ["x"], "Unable to parse 'trace_rate', got: x"),
        ("trace_rate", [""], "Unable to parse 'trace_rate', got: "),
        ("trace_rate", ["1.5"], "Unable to parse 'trace_rate', got: 1.5"),
        ("trace_rate", ["1_0"], "Unable to parse 'trace_rate', got: 1_0"),
        ("trace_rate", ["\u0661"], "Unable to parse 'trace_rate', got: \u0661"),
        ("trace_rate", ["-1"], "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1"),
        (
            "log_frequency",
            ["4294967296"],
            "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: 4294967296",
        ),
        ("trace_rate", ["1", "2"], "expect only 1 value for 'trace_rate'"),
        ("log_frequency", [], "expect only 1 value for 'log_frequency'"),
        ("trace_count", ["-2"], "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        (
            "trace_count",
            ["2147483648"],
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 2147483648",
        ),
        ("trace_count", ["many"], "Unable to parse 'trace_count', got: many"),
    ],
)
def test_values_that_are_none(name: str, texts: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_changes({name: texts})
    assert caught.value.message == message


def test_a_number_of_any_length_is_only_out_of_range() -> None:
    """Python itself refuses to convert very long ones."""
    with pytest.raises(InvalidArgument, match="out of range"):
        parse_changes({"trace_count": ["9" * 10_000]})


@pytest.mark.parametrize("texts", [None, [], ["/etc/passwd"]])
def test_the_file_cannot_be_changed(texts: list[str] | None) -> None:
    """Not even cleared, and not beside valid changes."""
    with pytest.raises(Unsupported, match="trace file location can not be updated through network protocol"):
        parse_changes({"trace_rate": ["1"], "trace_file": texts})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (TraceSettings(), "tracing is disabled"),
        (TraceSettings(level=("TIMESTAMPS",), file="f", rate=0), "sample rate must be non-zero"),
        (TraceSettings(level=("TENSORS",)), "trace file name is not given"),
        (TRACING, ""),
        (TraceSettings(level=("TIMESTAMPS",), rate=0, mode="opentelemetry"), ""),
        (
            TraceSettings(level=("TIMESTAMPS", "TENSORS"), mode="opentelemetry"),
            "level TENSORS is not supported in mode opentelemetry",
        ),
    ],
)
def test_why_settings_trace_nothing(settings: TraceSettings, reason: str) -> None:
    assert invalid_reason(settings) == reason
    level = Changes({"level": settings.level}, frozenset())
    if reason and not settings.is_off:
        with pytest.raises(InvalidArgument) as caught:
            changed(settings, level, TraceSettings())
        assert caught.value.message == f"Attempting to set invalid trace setting :{reason}"
    else:  # to switch tracing off is always allowed
        assert changed(settings, level, TraceSettings()) == settings


def test_what_is_cleared_falls_back() -> None:
    fallback = TraceSettings(level=("TENSORS",), rate=9, count=8, log_frequency=7, file="other")
    new = changed(TRACING, Changes({"count": 3}, frozenset({"rate", "level"})), fallback)
    assert new == TraceSettings(level=("TENSORS",), rate=9, count=3, log_frequency=0, file="t.json")
    assert followed(TRACING, fallback, frozenset()) == TRACING


def test_texts_on_the_wire() -> None:
    assert TRACING.texts() == {
        "trace_level": ("TIMESTAMPS",),
        "trace_rate": "1",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "t.json",
        "trace_mode": "triton",
    }
    export = ExportSettings("http://c", {"a": "1", "b": "2"}, bsp_schedule_delay=5)
    exported = TraceSettings(mode="opentelemetry", mode_options=export.texts())
    assert exported.texts() == {
        "trace_level": ("OFF",),
        "trace_rate": "1000",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": "http://c",
        "resource": "a=1,b=2",
        "bsp_schedule_delay": "5",
    }
