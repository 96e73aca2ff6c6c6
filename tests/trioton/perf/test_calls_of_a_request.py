"""What one small request costs the generator, in calls of Python functions of its own: they are the same every time."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import trioton.perf
from tests.trioton.perf.test_session import serving, target_of
from trioton.perf.load import Closed
from trioton.perf.measurement import Ends
from trioton.perf.session import open_session
from trioton.perf.target import Wire

pytestmark = pytest.mark.slow

OWN = str(Path(trioton.perf.__file__).parent)
# Of each slice, and not of a request.
ONCE = ("bucket_bounds", "genexpr", "<genexpr>", "<listcomp>", "<dictcomp>", "<lambda>")
# A call costs some 0.2 to 0.5 µs, so these are a small part of 65 µs of processor time; the rest is the system's.
MOST = {Wire.HTTP: 24, Wire.GRPC: 27, Wire.STREAM: 28}


@pytest.mark.parametrize("wire", MOST)
async def test_calls_of_a_request_are_few(tmp_path: Path, wire: Wire) -> None:
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OWN) and frame.f_code.co_name not in ONCE:
            calls[frame.f_code.co_qualname] += 1

    ends = Ends(warmup_seconds=0.2, requests=500, slice_seconds=0.5)
    async with serving(tmp_path) as server, open_session(target_of(server, wire)) as session:
        await session.measure(Closed(1), ends)
        sys.setprofile(count)
        try:
            found = await session.measure(Closed(1), ends)
        finally:
            sys.setprofile(None)
    # Those of the warm-up are sent, too; as many results have been taken as requests were made.
    per_request = sum(calls.values()) / calls["_Loop._take"]
    assert found.figures.succeeded == 500
    assert per_request <= MOST[wire], calls.most_common(30)
