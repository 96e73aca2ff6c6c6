"""One observed call: what is recorded of it, and what its trace gets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.errors import DeadlineExceeded, Overloaded
from protocol.gen_ai import CHAT, EndedCall, GenAiCall, Generated, requested
from protocol.server_settings import Trace
from tests.protocol.http.fake_services import FakeTrace


@dataclass
class Recorded:
    """Implements `GenAi`."""

    calls: list[EndedCall] = field(default_factory=list)

    def record(self, call: EndedCall) -> None:
        self.calls.append(call)


def begin(recorded: Recorded, **members: Any) -> GenAiCall:
    return GenAiCall(recorded, CHAT, model="m", arrival_ns=time.monotonic_ns() - 2_000_000_000, **members)


def end(call: GenAiCall) -> Mapping[str, Any]:
    """The attributes of its trace."""
    trace = FakeTrace("m")
    as_trace: Trace = trace
    call.end(as_trace)
    return trace.attributes


def test_one_that_succeeds() -> None:
    recorded = Recorded()
    call = begin(recorded, response_id="chatcmpl-1")
    call.requested = {"max_tokens": 9, "temperature": 0.5}
    call.first_token()
    call.first_token()
    call.succeed(Generated(7, 3, ("stop", "length")))
    assert end(call) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "trioton",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.model": "m",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
    }
    [found] = recorded.calls
    assert (found.operation, found.request_model, found.response_model, found.error_type) == ("chat", "m", "m", "")
    assert found.first_token_seconds is not None
    assert found.per_token_seconds is not None
    assert found.seconds >= found.first_token_seconds >= 2
    assert found.per_token_seconds >= 0


def test_one_that_fails() -> None:
    """Its first error is told; it has no times of tokens."""
    recorded = Recorded()
    call = begin(recorded)
    call.first_token()
    call.fail(Overloaded("too many"))
    call.fail(DeadlineExceeded("late"))
    assert end(call) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "trioton",
        "gen_ai.request.model": "m",
        "error.type": "OVERLOADED",
    }
    [found] = recorded.calls
    assert (found.error_type, found.first_token_seconds, found.per_token_seconds) == ("OVERLOADED", None, None)


def test_a_defect_is_internal() -> None:
    recorded = Recorded()
    call = begin(recorded)
    call.fail(ValueError("x"))
    call.end(None)
    assert recorded.calls[0].error_type == "INTERNAL"


def test_one_that_is_given_up_is_cancelled_and_ends_once() -> None:
    recorded = Recorded()
    call = begin(recorded, result=lambda: None)
    assert end(call)["error.type"] == "CANCELLED"
    assert end(call) == {}
    assert [each.error_type for each in recorded.calls] == ["CANCELLED"]


def test_unknown_counts_are_left_out() -> None:
    recorded = Recorded()
    call = begin(recorded, result=Generated)
    call.first_token()
    assert not {name for name in end(call) if "usage" in name or "finish" in name}
    assert recorded.calls[0].per_token_seconds is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.0, "top_k": None, "seed": 0, "stop": "my secret"}, {"temperature": 0.0, "seed": 0}),
    ],
)
def test_what_a_request_says(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert requested(SimpleNamespace(**fields)) == expected
