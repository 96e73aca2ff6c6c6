"""When a connection says that it ends, and that it has ended, by the time and by what its client does."""

from __future__ import annotations

from protocol.http.http2.goodbye import ANSWER_SECONDS, WAIT_SECONDS, Goodbye, Step


def test_nothing_happens_before_it_has_begun() -> None:
    goodbye = Goodbye()
    assert goodbye.due(1e9) is None
    assert goodbye.on_idle(5) is None
    assert goodbye.on_answered() is None


def test_a_busy_connection_says_it_behind_its_last_response() -> None:
    goodbye = Goodbye()
    goodbye.begin(100)
    assert goodbye.due(100 + WAIT_SECONDS / 2) is None
    assert goodbye.on_idle(100.1) is Step.ANNOUNCE
    assert goodbye.on_idle(100.2) is None  # once
    assert goodbye.on_answered() is Step.REFUSE
    assert goodbye.due(1e9) is None


def test_a_connection_that_is_always_busy_says_it_all_the_same() -> None:
    goodbye = Goodbye()
    goodbye.begin(100)
    assert goodbye.due(100 + WAIT_SECONDS) is Step.ANNOUNCE


def test_an_idle_connection_waits_for_the_request_that_may_be_on_its_way() -> None:
    goodbye = Goodbye()
    goodbye.begin(100)
    assert goodbye.due(100) is None
    assert goodbye.due(100 + WAIT_SECONDS) is Step.ANNOUNCE


def test_a_client_that_says_nothing_is_given_a_while() -> None:
    goodbye = Goodbye()
    goodbye.begin(100)
    announced = 100 + WAIT_SECONDS
    assert goodbye.due(announced) is Step.ANNOUNCE
    assert goodbye.due(announced + ANSWER_SECONDS / 2) is None
    assert goodbye.due(announced + ANSWER_SECONDS) is Step.REFUSE
    assert goodbye.on_answered() is None


def test_it_begins_once() -> None:
    goodbye = Goodbye()
    goodbye.begin(100)
    goodbye.begin(200)
    assert goodbye.due(100 + WAIT_SECONDS) is Step.ANNOUNCE
