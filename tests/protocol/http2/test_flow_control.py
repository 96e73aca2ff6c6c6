"""Windows: never more than allowed, and given back in time."""

from __future__ import annotations

import pytest
from h2.exceptions import FlowControlError
from hypothesis import given
from hypothesis import strategies as st

from protocol.http2.flow_control import LARGEST_WINDOW, ReceiveWindow, widened


def test_a_window_has_a_largest_size() -> None:
    assert widened(-5, LARGEST_WINDOW) == LARGEST_WINDOW - 5
    with pytest.raises(FlowControlError):
        widened(1, LARGEST_WINDOW)


def test_more_than_the_window() -> None:
    window = ReceiveWindow(10)
    window.consume(10)
    with pytest.raises(FlowControlError):
        window.consume(1)


def test_little_is_not_worth_a_frame() -> None:
    window = ReceiveWindow(1000)
    window.consume(100)
    assert window.give_back(100) == 0
    window.consume(400)
    assert window.give_back(400) == 500


@given(st.integers(1, 1000), st.lists(st.integers(1, 1000)))
def test_a_client_whose_data_is_read_is_never_stuck(size: int, wanted: list[int]) -> None:
    """As much as it may at a time, all of it given back: there is always room for more, and never too much."""
    window = ReceiveWindow(size)
    allowed = size  # as the client knows
    for amount in wanted:
        sent = min(amount, allowed)
        assert sent
        window.consume(sent)
        allowed += window.give_back(sent) - sent
        assert 0 < allowed <= size
