"""A model's own requests are found as the request that they are made for."""

from __future__ import annotations

import pytest

from protocol.log.call_origin import CallOrigin, StreamedOrigin
from protocol.log.request_ids import NO_IDS, RequestIds
from protocol.origin import CallersOrigin


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("given", ["", "of the model", "inner"])
def test_the_callers_id_stays(is_streamed: bool, given: str) -> None:
    """Also where the first line of all is about what the model asks."""
    call = CallOrigin(RequestIds(), NO_IDS, lambda: "alice")
    outer = StreamedOrigin(call) if is_streamed else call
    inner = CallersOrigin(outer, "outer")
    assert inner.tags(given) == outer.tags("outer")
    assert inner.tags(given).request_id == "outer"
    assert CallersOrigin(inner, given).tags("innermost").request_id == "outer"
