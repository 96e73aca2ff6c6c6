"""Which requests are traced, by rate and count."""

from __future__ import annotations

import pytest

from actors.tracing.sampling import TraceSampling
from protocol.server_settings import TraceSettings


def known(model: str) -> bool:
    return model != "unknown"


def sampling(*, rate: int = 1, count: int = -1, mode: str = "triton") -> TraceSampling:
    return TraceSampling(TraceSettings(("TIMESTAMPS",), rate, count, file="t.json", mode=mode))


def taken(made: TraceSampling, models: str, *, forced: str = "") -> str:
    return "".join(str(int(made.takes(model, known, is_forced=model in forced))) for model in models)


@pytest.mark.parametrize(
    ("rate", "count", "models", "expected"),
    [
        (1, -1, "aaaa", "1111"),
        (3, -1, "aaaaaaa", "0010010"),
        (2, -1, "abababab", "00110011"),
        (1, 2, "aaaa", "1100"),
        (2, 1, "aabb", "0100"),
        (1, 0, "aa", "00"),
    ],
)
def test_every_rate_th_request_of_a_model_until_the_count_is_used_up(
    rate: int, count: int, models: str, expected: str
) -> None:
    assert taken(sampling(rate=rate, count=count), models) == expected


def test_the_count_that_is_left_is_shown() -> None:
    made = sampling(count=3)
    taken(made, "aa")
    assert (made.settings.count, made.is_active) == (1, True)
    taken(made, "a")
    assert (made.settings.count, made.is_active) == (0, False)
    assert sampling().settings.count == -1


def test_forced_requests_are_traced_though_it_is_not_their_turn() -> None:
    """They use up no count; with rate 0 only they are traced."""
    made = sampling(rate=3, count=1, mode="opentelemetry")
    assert taken(made, "ffa", forced="f") == "110"
    assert made.settings.count == 1
    assert taken(sampling(rate=0, mode="opentelemetry"), "afa", forced="f") == "010"


def test_made_up_models_cost_nothing() -> None:
    made = sampling(count=1)
    assert not any(made.takes("unknown", known, is_forced=True) for _ in range(3))
    assert made._seen == {}
    assert made.settings.count == 1


@pytest.mark.parametrize("settings", [TraceSettings(), TraceSettings(("TIMESTAMPS",), 1), TraceSettings(file="f")])
def test_settings_that_trace_nothing_keep_their_count(settings: TraceSettings) -> None:
    """Off, or without a file: a count that was set comes into force when they are changed."""
    made = TraceSampling(settings)
    assert not made.is_active
    assert not made.takes("a", known, is_forced=True)
    assert made.settings == settings
