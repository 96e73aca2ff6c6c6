"""The tool measures what it says: calls that are answered."""

from __future__ import annotations

import pytest

from tests.bench import grpc_edge


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("calls", "size"), [(1, 64), (20, 64), (2, 90_000)])
async def test_all_calls_of_a_burst_are_answered(calls: int, size: int, streaming: bool) -> None:
    assert await grpc_edge.measure(calls, size, bursts=3, streaming=streaming) > 0


def test_each_row_is_printed() -> None:
    said: list[str] = []
    grpc_edge.main(["--bursts", "1"], say=said.append)
    assert [line.split("  ")[0] for line in said] == [name for name, *_ in grpc_edge.ROWS]
