"""Received requests of one edge process: from records of a frame to `InferenceRequest`. The other side of `requests`.

Flow: socket -> link server -> [received] -> link server -> core
"""

from __future__ import annotations

import math
from typing import NamedTuple

from protocol.edge_link.frames import BrokenFrame, Frame
from protocol.edge_link.observed import NotedCall
from protocol.edge_link.records import INLINE
from protocol.edge_link.segments import ReadSegment
from protocol.edge_link.templates import ReceivedTemplates
from protocol.edge_link.texts import LinkedOrigin, LinkedTrace, RequestExtras, TraceText, decode_text
from protocol.messages import InferenceRequest, Tensor


class Received(NamedTuple):
    """One request. It has no charge yet: `key` is that of its client, `size` what it costs of a quota of bytes;
    with a `charge` it is charged together with others of that number, so many `inferences` in all. `trace` is there if
    it may be traced."""

    number: int
    flags: int
    request: InferenceRequest
    key: str
    size: float
    charge: int
    inferences: int
    trace: TraceText | None


class RequestReader:
    """Reads the records of frames, large tensors from the segment `inputs`. All raise BrokenFrame."""

    def __init__(self, inputs: ReadSegment) -> None:
        self._inputs = inputs
        self._templates = ReceivedTemplates()

    def read_template(self, frame: Frame) -> None:
        self._templates.receive(frame)

    def read_plain(self, frame: Frame) -> tuple[str, int, list[tuple[int, InferenceRequest]]]:
        """The key and the size that all of them have, and each with its number."""
        number, count = frame.take(2)
        template = self._templates[number]
        rows = frame.take(2 * count)
        size = template.size
        data = frame.take_data(count * size)
        if not (count > 0 and template.is_fixed):
            raise BrokenFrame(f"its template of {count} plain requests has sizes that vary")
        model_name, version = template.model_name, template.model_version
        requested, priority, timeout = (
            template.requested_outputs,
            template.priority,
            template.timeout_microseconds,
        )
        tags, tag_at, tag_end = frame.texts, frame.text_at, frame.text_at
        found: list[tuple[int, InferenceRequest]] = []
        starts = [index * size for index in range(count)]
        columns = [
            [Tensor(name, datatype, shape, data[start + begin : start + end]) for start in starts]
            for name, datatype, shape, begin, end in template.tensors
        ]
        each = map(list, zip(*columns, strict=True)) if columns else ([] for _ in starts)
        for number, tags_size, tensors in zip(rows[::2], rows[1::2], each, strict=True):
            tag_end += tags_size
            if tag_end < tag_at:
                raise BrokenFrame(f"its request {number} has tags of {tags_size} bytes")
            request = InferenceRequest(
                model_name,
                tensors,
                version,
                "",
                requested,
                {},
                0,
                False,
                False,
                priority,
                timeout,
                template=template,
                origin=LinkedOrigin(tags[tag_at:tag_end]),
            )
            tag_at = tag_end
            found.append((number, request))
        frame.take_text(tag_end - frame.text_at)
        return template.key, size, found

    def read(self, frame: Frame) -> Received:
        number, own, flags, tags_size, extras_size, place, size = frame.take(7)
        template = self._templates[number]
        sizes = frame.take(template.count_varying)
        tags = frame.take_text(tags_size)
        extras = decode_text(frame.take_text(extras_size), RequestExtras)
        data = frame.take_data(size) if place == INLINE else self._inputs.lend(place, size)
        request = InferenceRequest(
            template.model_name,
            template.views(data, sizes),
            template.model_version,
            extras.id,
            template.requested_outputs,
            extras.parameters,
            extras.sequence_id,
            extras.sequence_start,
            extras.sequence_end,
            template.priority,
            template.timeout_microseconds,
            template=template if template.is_fixed else None,
            origin=LinkedOrigin(tags),
            trace=LinkedTrace() if extras.is_measured else None,
            gen_ai=NotedCall(template.model_name) if extras.is_observed else None,
        )
        charged = size if extras.size is None else extras.size
        if not 0 <= charged < math.inf or extras.charge < 0 or extras.inferences < 1:
            raise BrokenFrame(f"its request {own} costs {charged} bytes, and is charged to {extras.charge}")
        return Received(own, flags, request, template.key, charged, extras.charge, extras.inferences, extras.trace)
