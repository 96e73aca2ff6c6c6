"""Jobs as long-running operations: their responses, errors, and the conditions of a list."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, NotFound
from protocol.grpc.services.operation_messages import item_parts, job_id_of, operation, read_filter, with_response
from protocol.jobs.job import Counts, ItemError, Job
from protocol.jobs.payload import encode_responses
from protocol.jobs.source import DataFormat, DataPlace, JobSource
from protocol.jobs.states import JobState
from protocol.jobs.store import Item, JobFilter
from protocol.messages import Buffer, InferenceResponse, Tensor
from protocol.proto import message_class


def job(state: JobState, counts: Counts, error: ItemError | None = None) -> Job:
    return Job("job_1", "ann", "m", 3, state, counts, 1.5, 9.0, 2.0, 3.0, metadata={"a": "\ud800"}, error=error)


def result(*sizes: int) -> bytes:
    responses = [
        InferenceResponse("m", 3, [Tensor("OUT", DataType.UINT8, (size,), bytes([7]) * size)], id=str(size))
        for size in sizes
    ]
    return b"".join(encode_responses(responses))


def read(parts: list[Buffer], name: str = "google.longrunning.Operation") -> Any:
    return message_class(name).FromString(b"".join(parts))


SUCCEEDED = job(JobState.SUCCEEDED, Counts(succeeded=1))


@pytest.mark.parametrize("size", [1, 100_000])
def test_the_response_of_one_request(size: int) -> None:
    made = read(with_response(operation(SUCCEEDED), result(size)))
    assert (made.name, made.done, made.WhichOneof("result")) == ("operations/job_1", True, "response")
    assert made.response.type_url == "type.googleapis.com/inference.ModelInferResponse"
    response: Any = message_class("inference.ModelInferResponse").FromString(made.response.value)
    assert (response.id, list(response.raw_output_contents)) == (str(size), [bytes([7]) * size])
    metadata: Any = message_class("trioton.JobMetadata").FromString(made.metadata.value)
    assert (metadata.state, metadata.model_name, metadata.model_version, metadata.create_time.nanos) == (
        3,
        "m",
        "3",
        500_000_000,
    )
    assert dict(metadata.metadata) == {"a": "?"}


def test_several_responses_are_a_result() -> None:
    made = read(with_response(operation(SUCCEEDED), result(1, 2)))
    assert made.response.type_url == "type.googleapis.com/trioton.JobResult"
    item = read(item_parts(Item(0, "c", "m", JobState.SUCCEEDED, 1, b"", result(1, 2))), "trioton.JobItem")
    assert [response.id for response in item.responses] == ["1", "2"]
    assert operation(SUCCEEDED, is_listed=True).response.type_url == "type.googleapis.com/trioton.JobResult"


def test_results_that_are_in_files_are_no_response() -> None:
    place = DataPlace("/data", DataFormat.JSON_LINES)
    made = operation(replace(SUCCEEDED, source=JobSource("m", place, place)))
    assert made.response.type_url == "type.googleapis.com/trioton.JobResult"


@pytest.mark.parametrize(
    ("state", "error", "code"),
    [
        (JobState.FAILED, ItemError("INVALID_ARG", "it is bad\ud800"), 3),
        (JobState.FAILED, None, 2),
        (JobState.FAILED, ItemError("?", ""), 2),
        (JobState.CANCELLED, ItemError("INVALID_ARG", ""), 1),
        (JobState.EXPIRED, None, 4),
    ],
)
def test_errors(state: JobState, error: ItemError | None, code: int) -> None:
    made = operation(job(state, Counts(failed=1), error))
    assert (made.done, made.WhichOneof("result"), made.error.code) == (True, "error", code)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING])
def test_what_has_not_ended_is_not_done(state: JobState) -> None:
    made = operation(job(state, Counts(queued=1)))
    assert (made.done, made.WhichOneof("result")) == (False, None)


def test_a_result_that_cannot_be_read_is_an_error_of_its_item() -> None:
    item = read(item_parts(Item(3, "c", "m", JobState.SUCCEEDED, 1, b"", b"broken")), "trioton.JobItem")
    assert (item.index, item.error.code, len(item.responses)) == (3, 13, 0)


def test_names() -> None:
    assert job_id_of("operations/job_1") == "job_1"
    for name in ("", "operations", "operations/", "job_1", "jobs/job_1"):
        with pytest.raises(NotFound):
            job_id_of(name)


ENDED = frozenset(state for state in JobState if state.is_ended)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", JobFilter()),
        ("done = true", JobFilter(ENDED)),
        ("done=false", JobFilter(frozenset(JobState) - ENDED)),
        ("state = RUNNING", JobFilter(frozenset({JobState.RUNNING}))),
        ('model = "a b"', None),
        ('model = "a" AND done = true  AND state=failed', JobFilter(frozenset({JobState.FAILED}), "a")),
        ("done = false AND state = failed", None),
        ("done = true OR done = false", None),
        ("AND", None),
    ],
)
def test_filters(text: str, found: JobFilter | None) -> None:
    if found is not None:
        assert read_filter(text) == found
        return
    with pytest.raises(InvalidArgument, match="'filter'"):
        read_filter(text)


@given(st.text() | st.lists(st.sampled_from(["done", "=", " ", "AND", "true", "model", '"'])).map("".join))
def test_any_filter_is_one_or_refused(text: str) -> None:
    with suppress(InvalidArgument):
        read_filter(text)
