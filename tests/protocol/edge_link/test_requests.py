"""Requests of an edge process as records."""

from __future__ import annotations

import numpy as np

from protocol.edge_link.requests import RequestWriter
from protocol.edge_link.segments import WrittenSegment
from protocol.messages import InferenceRequest, Tensor


def test_requests_of_one_form_keep_their_own_limits() -> None:
    """The edge's template says which tensors there are, and not how long they may take."""
    writer = RequestWriter(WrittenSegment(0, 0), lambda _: None)
    form = (("IN",), ())
    limits = [(0, 0), (500_000, 0), (0, 2), (0, 0)]
    found = []
    for timeout, priority in limits:
        tensor = Tensor.from_numpy("IN", np.zeros(2, np.float32))
        request = InferenceRequest("m", [tensor], template=form)
        request.timeout_microseconds, request.priority = timeout, priority
        text = writer._template(request).text
        found.append((text.timeout_microseconds, text.priority))
    assert found == limits
