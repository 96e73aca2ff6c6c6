"""`preserve_ordering`: answers leave in the order of the requests."""

from __future__ import annotations

from actors.scheduling.ordered_replies import OrderedReplies
from protocol.messages import InferenceResponse
from tests.actors.fakes import Caller

RESPONSE = InferenceResponse("m", 1, [])


def test_an_early_answer_waits_for_the_earlier_request() -> None:
    ordered = OrderedReplies()
    first, second, third = Caller(), Caller(), Caller()
    for caller in (first, second, third):
        ordered.expect(caller.item)
    ordered.answer([(third.item, RESPONSE), (second.item, RESPONSE)])
    assert (second.answer(), third.answer()) == (None, None)
    ordered.answer([(first.item, RESPONSE)])
    assert [caller.answer() for caller in (first, second, third)] == [RESPONSE] * 3


def test_an_abandoned_request_holds_nobody_up_and_may_still_be_answered() -> None:
    ordered = OrderedReplies()
    gone, second = Caller(), Caller()
    ordered.expect(gone.item)
    ordered.expect(second.item)
    ordered.answer([(second.item, RESPONSE)])
    gone.item.is_cancelled = True
    ordered.answer(())
    assert second.answer() is RESPONSE
    ordered.answer([(gone.item, RESPONSE)])  # its batch ends later
    assert gone.answer() is None
