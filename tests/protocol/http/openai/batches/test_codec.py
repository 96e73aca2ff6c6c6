"""Bodies, queries and objects of files and batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import openai.types
import pytest

from protocol.errors import InvalidArgument
from protocol.http.openai.batches.call import list_reply
from protocol.http.openai.batches.codec import (
    BATCH_READER,
    batch_json,
    check_purpose,
    file_json,
    page_of,
    upload_seconds,
)
from protocol.http.openai.errors import FieldError
from protocol.jobs.batches.batch import Batch, BatchState, LineCounts, LineError, TokenUsage
from protocol.jobs.batches.files import StoredFile
from protocol.jobs.states import JobState
from tests.protocol.http.openapi.samples import ADD_SUB, document, errors

WHOLE = document(ADD_SUB)
BATCH = Batch("batch_1", "ann", "/v1/completions", "file-1", "payload", 100.5, 200.9)
FILE = StoredFile("file-1", "ann", "batch", "in.jsonl", "payload", 12, 100.5, 200.9)
ASKED: dict[str, Any] = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}


def check(**change: Any) -> float:
    body = BATCH_READER.read(msgspec.json.encode({**ASKED, **change}))
    body.check()
    body.checked_webhook()
    return body.output_seconds


def test_a_batch_that_is_asked_for() -> None:
    assert check(metadata={"k" * 64: "v" * 512}) == 0.0
    assert check(output_expires_after={"anchor": "created_at", "seconds": 3600}) == 3600.0


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/videos"}, "endpoint"),
        ({"completion_window": "48h"}, "completion_window"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata[...]"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 2_592_001}}, "output_expires_after.seconds"),
        ({"input_file_id": 1}, "input_file_id"),
    ],
)
def test_a_batch_that_cannot_be(change: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as refused:
        check(**change)
    assert refused.value.param == param


def test_whom_a_batch_tells() -> None:
    asked = {"url": "https://a/", "events": ["batch.completed", "batch.cancelled"]}
    webhook = BATCH_READER.read(msgspec.json.encode({**ASKED, "webhook": asked})).checked_webhook()
    assert webhook is not None
    assert (webhook.url, webhook.states) == ("https://a/", frozenset({JobState.SUCCEEDED, JobState.CANCELLED}))
    with pytest.raises(InvalidArgument, match=r"expected events out of batch\.completed, batch\.failed"):
        check(webhook={"url": "https://a/", "events": ["job.succeeded"]})


def test_fields_of_an_upload() -> None:
    assert upload_seconds({}) == 0.0
    assert upload_seconds({"expires_after[anchor]": "created_at", "expires_after[seconds]": "4000"}) == 4000.0
    check_purpose({"purpose": "batch"})


@pytest.mark.parametrize(
    "fields",
    [
        {"expires_after[seconds]": "4000"},
        {"expires_after[anchor]": "created_at"},
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "1e9"},
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "9" * 5000},
    ],
)
def test_fields_that_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(FieldError, match="expires_after"):
        upload_seconds(fields)
    for wrong in ({}, {"purpose": "fine-tune"}):
        with pytest.raises(FieldError, match="purpose"):
            check_purpose(wrong)


def test_pages() -> None:
    assert (page_of(b"").limit, page_of(b"").ascending) == (20, False)
    page = page_of(b"limit=7&after=x&order=asc&purpose=batch", 10_000, 10_000)
    assert (page.limit, page.after, page.ascending, page.purpose) == (7, "x", True, "batch")
    for query in (b"limit=0", b"limit=101", b"limit=x", b"limit=" + b"9" * 5000, b"order=up"):
        with pytest.raises(FieldError):
            page_of(query)


async def test_a_list_tells_whether_there_are_more() -> None:
    files = [replace(FILE, id=f"file-{number}") for number in range(40)]
    page = msgspec.json.decode((await list_reply(files, 39, file_json)).body)
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([file.id for file in files[:39]], True)
    assert (page["first_id"], page["last_id"]) == ("file-0", "file-38")
    assert errors(WHOLE, {"$ref": "#/components/schemas/FilePage"}, page) == []
    assert not msgspec.json.decode((await list_reply(files, 40, file_json)).body)["has_more"]
    assert msgspec.json.decode((await list_reply(files[:0], 3, file_json)).body) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_a_file_is_as_the_client_and_the_document_have_it() -> None:
    made = openai.types.FileObject.model_validate(file_json(FILE), strict=True)
    assert (made.bytes, made.created_at, made.expires_at, made.filename) == (12, 100, 200, "in.jsonl")
    assert errors(WHOLE, {"$ref": "#/components/schemas/File"}, file_json(FILE)) == []


@pytest.mark.parametrize("state", BatchState)
def test_a_batch_is_as_the_client_and_the_document_have_it(state: BatchState) -> None:
    batch = replace(
        BATCH,
        state=state,
        times={state: 150.5},
        errors=(LineError("empty_file", "no lines"), LineError("invalid_json_line", "wrong", 3, "body")),
        counts=LineCounts(3, 2, 1),
        usage=TokenUsage(1, 2, 3, 4),
        metadata={"a": "b"},
    )
    sent = msgspec.json.decode(msgspec.json.encode(batch_json(batch)))
    assert errors(WHOLE, {"$ref": "#/components/schemas/Batch"}, sent) == []
    made = openai.types.Batch.model_validate(sent)
    assert made.status == state
    if state is not BatchState.VALIDATING:
        assert getattr(made, f"{state}_at") == 150
    assert made.errors is not None
    assert [(error.line, error.param) for error in made.errors.data or ()] == [(None, None), (3, "body")]
    assert made.usage is not None
    assert (made.usage.total_tokens, made.usage.output_tokens_details.reasoning_tokens) == (3, 4)
    assert made.request_counts is not None
    assert (made.request_counts.total, made.request_counts.failed) == (3, 1)


def test_a_batch_that_has_just_been_made() -> None:
    sent = batch_json(BATCH)
    assert (sent["errors"], sent["usage"], sent["metadata"], sent["model"]) == (None, None, None, None)
    assert (sent["output_file_id"], sent["error_file_id"], sent["expires_at"]) == (None, None, 200)
