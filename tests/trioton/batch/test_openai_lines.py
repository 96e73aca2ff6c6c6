"""Lines of OpenAI's batch files: which are of that form, and how their results are written."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from protocol.core import InferenceCore
from protocol.errors import InvalidArgument
from protocol.http.openai.batches.execution import LineExecutor
from protocol.jobs.job import ItemError
from protocol.jobs.rows import ResultRow
from trioton.batch.openai_lines import RouteRequest, RouteResult, Routes, encode_line, read_route_line
from trioton.batch.window import byte_size

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def line(**more: Any) -> bytes:
    return json.dumps({**LINE, **more}).encode()


def test_a_line() -> None:
    found = read_route_line(line())
    assert found == ("a", RouteRequest("/v1/completions", b'{"prompt": "x"}'))


@pytest.mark.parametrize(
    "text",
    [b"", b"garbage", b'{"text_input": "x"}', b'{"url": 3, "body": {}}', b'{"url": "x", "bodies": "body"}', b"\xff"],
)
def test_what_is_no_such_line(text: bytes) -> None:
    assert read_route_line(text) is None


@pytest.mark.parametrize("custom_id", [3, None, "x" * 513])
def test_a_name_that_is_none(custom_id: object) -> None:
    with pytest.raises(InvalidArgument, match="'custom_id': expected a text"):
        read_route_line(line(custom_id=custom_id))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"method": "GET"}, "'method': expected POST, got 'GET'"),
        ({"url": "/v1/models"}, "'url': expected one of /v1/chat/completions"),
    ],
)
async def test_there_is_no_such_route(more: dict[str, Any], text: str) -> None:
    """The line keeps its name, and fails when it is to be run."""
    found = read_route_line(line(**more))
    assert found is not None
    routes = Routes(cast(InferenceCore, None), cast(LineExecutor, None), "m")
    with pytest.raises(InvalidArgument, match=text):
        await routes.run(0, *found)


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        (
            RouteResult(7, "a", answer=b'{"status_code":200}'),
            {"response": {"status_code": 200}, "error": None},
        ),
        (
            RouteResult(7, "a", error=ItemError("INVALID_ARG", "no"), answer=b'{"status_code":400}'),
            {"response": {"status_code": 400}, "error": None},
        ),
        (
            RouteResult(7, "a", error=ItemError("INTERNAL", "died \udcff")),
            {"response": None, "error": {"code": "internal", "message": "died ?"}},
        ),
    ],
)
def test_results(row: RouteResult, wanted: dict[str, Any]) -> None:
    found = json.loads(encode_line(row))
    assert found == {"id": "batch_req_000000000007", "index": 7, "custom_id": "a", **wanted}
    assert byte_size(row) == len(row.answer)


def test_other_results_are_as_ever() -> None:
    found = json.loads(encode_line(ResultRow(3, "", error=ItemError("INTERNAL", "no"))))
    assert found == {"index": 3, "error": {"kind": "INTERNAL", "message": "no"}}
