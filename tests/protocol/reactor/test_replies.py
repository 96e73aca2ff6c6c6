"""Replies that are delivered together: none is left behind."""

from __future__ import annotations

from functools import partial

from protocol.reactor.replies import Replies


class Answered:
    def __init__(self) -> None:
        self.delivered = 0

    def deliver(self) -> None:
        self.delivered += 1

    def fail(self, error: Exception) -> None:
        raise AssertionError from error


class Flushed(Answered):
    """The last call of its burst brings another answer."""

    def __init__(self, replies: Replies, brings: Answered) -> None:
        super().__init__()
        self._answers = replies
        self._brings = brings

    def deliver(self) -> None:
        super().deliver()
        self._answers.call_last(partial(self._answers.put, self._brings), self.fail)


async def test_an_answer_that_a_last_call_brings_is_delivered_in_the_same_burst() -> None:
    replies, brought = Replies(), Answered()
    flushed = Flushed(replies, brought)
    replies.begin_burst()
    replies.put(flushed)
    replies.end_burst()
    assert (flushed.delivered, brought.delivered) == (1, 1)
