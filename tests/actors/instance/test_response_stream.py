"""Responses that their caller takes at once, and those that wait for it: in the order in which they were sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from actors.instance.response_stream import ResponseStream
from actors.mail.messages import QueuedRequest
from actors.mail.reply_slot import Reply
from actors.mail.waiting_responses import WaitingResponses
from actors.metrics.response_statistics import ResponseStatistics
from protocol.messages import InferenceRequest, InferenceResponse
from tests.actors.fakes import tensor


def response(number: int, *, is_final: bool = False) -> InferenceResponse:
    return InferenceResponse("m", 1, [tensor(name="OUT", value=number)], is_final=is_final)


class Caller:
    """A request's caller, which takes responses at once while `is_ready`."""

    def __init__(self) -> None:
        self.is_ready = True
        self.at_once: list[InferenceResponse] = []
        self.waiting = WaitingResponses(None)
        self.reply, self.answers = trio.open_memory_channel[Reply](8)
        self.statistics = ResponseStatistics()
        self.item = QueuedRequest(InferenceRequest("m", []), 1, None, 0.0, self.reply, waiting=self.waiting)
        self.item.respond_at_once = self.respond_at_once
        self.ended: list[object] = []
        self.stream = ResponseStream(self.item, lambda stream, error: self.ended.append(error), self.statistics)

    def respond_at_once(self, response: InferenceResponse) -> bool:
        if response.is_final or not self.is_ready:
            return False
        self.at_once.append(response)
        return True

    def take(self) -> Reply:
        """The next that waits, as the caller's task takes it."""
        taken = self.answers.receive_nowait()
        self.waiting.remove_first()
        return taken


async def test_a_response_is_taken_at_once_where_none_waits() -> None:
    caller = Caller()
    first, second, third, last = response(1), response(2), response(3), response(4, is_final=True)
    with caller.waiting:
        assert caller.stream.send_nowait(first)
        caller.is_ready = False
        assert caller.stream.send_nowait(second)
        caller.is_ready = True
        assert caller.stream.send_nowait(third)  # it must not overtake the second
        assert caller.take() is second
        assert caller.take() is third
        assert caller.stream.send_nowait(last)
        assert caller.take() is last
    assert caller.at_once == [first]
    assert caller.item.response_count == 4
    assert caller.ended == [None]
    assert {name: each.success.count for name, each in caller.statistics.frozen().items()} == dict.fromkeys("0123", 1)


async def test_none_is_taken_at_once_while_the_caller_passes_one_on() -> None:
    caller = Caller()
    caller.is_ready = False
    with caller.waiting:
        caller.stream.send_nowait(response(1))
        caller.is_ready = True
        caller.answers.receive_nowait()  # and is busy with it
        caller.stream.send_nowait(response(2))
    assert caller.at_once == []


def raises(response: InferenceResponse) -> bool:
    raise ZeroDivisionError


async def test_what_fails_at_once_is_handed_over_to_fail_where_the_caller_sees_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caller = Caller()
    caller.item.respond_at_once = raises
    sent = response(1)
    with caller.waiting:
        assert caller.stream.send_nowait(sent)
        assert caller.take() is sent
    assert caller.ended == []


@pytest.mark.parametrize("leave", [lambda caller: None, lambda caller: caller.answers.close()])
async def test_nothing_is_given_to_a_caller_that_has_gone(leave: Callable[[Caller], None]) -> None:
    caller = Caller()
    with caller.waiting:
        leave(caller)
    caller.item.is_cancelled = True
    assert caller.stream.send_nowait(response(1))
    assert caller.at_once == []
