"""Link told: takes what one edge process tells the core beside its requests: the use of keys, and how calls have ended.

edge process -> socket -> link server -> [link told] -> accounts, traces, metrics
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocol.edge_link.charges import JointCharges
from protocol.edge_link.frames import BrokenFrame, Frame
from protocol.edge_link.keys import TellingKeys
from protocol.edge_link.link_traces import LinkTraces
from protocol.edge_link.observed import decode_call
from protocol.edge_link.records import CHARGED, OBSERVED, STAMPS, UNSENT, USED
from protocol.edge_link.texts import StampsText, UnsentTraceText, decode_text
from protocol.gen_ai import GenAi


class LinkTold:
    """`gen_ai` is where observed calls are recorded, if any are.

    Attributes:
        handlers: of the records, by their kinds. All raise BrokenFrame.
    """

    def __init__(
        self, keys: TellingKeys | None, charges: JointCharges, traces: LinkTraces, gen_ai: GenAi | None
    ) -> None:
        self._keys = keys
        self._charges = charges
        self._traces = traces
        self._gen_ai = gen_ai
        self.handlers: Mapping[int, Callable[[Frame], None]] = {
            USED: self._used,
            CHARGED: self._charged,
            STAMPS: self._stamps,
            UNSENT: self._unsent,
            OBSERVED: self._observed,
        }

    def _used(self, frame: Frame) -> None:
        text = _text(frame)
        if self._keys is None:
            raise BrokenFrame("it tells of the use of a key, and there are no keys")
        self._keys.note_used(text)

    def _charged(self, frame: Frame) -> None:
        (number,) = frame.take(1)
        self._charges.end(number, _text(frame))

    def _stamps(self, frame: Frame) -> None:
        self._traces.end(decode_text(_text(frame), StampsText))

    def _unsent(self, frame: Frame) -> None:
        self._traces.note_unsent(decode_text(_text(frame), UnsentTraceText))

    def _observed(self, frame: Frame) -> None:
        call = decode_call(_text(frame))
        if self._gen_ai is None:
            raise BrokenFrame("it tells of an observed call, and none are observed")
        self._gen_ai.record(call)


def _text(frame: Frame) -> memoryview:
    (size,) = frame.take(1)
    return frame.take_text(size)
