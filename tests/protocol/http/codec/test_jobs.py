"""Codec of jobs: preferences, idempotency keys, queries, lists, and jobs as JSON."""

from __future__ import annotations

import json

import pytest

from protocol.errors import InvalidArgument
from protocol.http.codec.infer import decode_infer_request
from protocol.http.codec.jobs import (
    MAX_ITEMS,
    Preferences,
    fingerprint,
    idempotency_key,
    page_json,
    page_of,
    preferences,
    read_job_list,
    read_listed_request,
    timeout_of,
)
from protocol.http.codec.query import read_query
from protocol.jobs.job import Counts, ItemError, Job
from protocol.jobs.job_json import job_json
from protocol.jobs.states import JobState

JOB = Job("job_1", "ann", "m", -1, JobState.QUEUED, Counts(queued=2), 1.0, 9.0)


@pytest.mark.parametrize(
    ("values", "expected", "applied"),
    [
        ([b"respond-async"], Preferences(True), b"respond-async"),
        ([b"respond-async, wait=10"], Preferences(True, 10.0), b"respond-async, wait=10"),
        ([b"Respond-Async; x=1", b'WAIT="5"'], Preferences(True, 5.0), b"respond-async, wait=5"),
        ([b"wait=5, wait=6"], Preferences(False, 5.0), None),
        ([b"respond-async,wait=" + b"9" * 30], Preferences(True, 600.0), b"respond-async, wait=600"),
        ([b"wait=-1"], Preferences(), None),
        ([b"wait=\xb2"], Preferences(), None),
        ([b",,=;"], Preferences(), None),
        ([b"return=minimal"], Preferences(), None),
        ([], Preferences(), None),
    ],
)
def test_preferences(values: list[bytes], expected: Preferences, applied: bytes | None) -> None:
    found = preferences([(b"Prefer", value) for value in values] + [(b"other", b"respond-async")])
    assert found == expected
    assert applied is None or found.applied == applied


def test_an_idempotency_key_is_plain_text() -> None:
    assert idempotency_key({}) == ""
    assert idempotency_key({b"idempotency-key": b'"a key"'}) == '"a key"'
    for wrong in (b"", b"x" * 256, b"\xff", b"a\tb"):
        with pytest.raises(InvalidArgument, match="1 to 255 printable ASCII"):
            idempotency_key({b"idempotency-key": wrong})


def test_a_fingerprint_tells_requests_apart() -> None:
    made = {
        fingerprint(what, length, body) for what in ("a", "b") for length in (None, b"1") for body in (b"", b"x", b"1x")
    }
    assert len(made) == 12
    assert fingerprint("a", b"1", b"x") == fingerprint("a", b"1", memoryview(b"x"))


@pytest.mark.parametrize(
    "query",
    [b"state=odd", b"state=queued,odd", b"limit=0", b"limit=101", b"limit=", b"limit=%C2%B2", b"limit=" + b"1" * 5000],
)
def test_a_page_that_is_none(query: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"'state'|'limit'"):
        page_of(read_query(query))


def test_a_page() -> None:
    page = page_of(read_query(b"state=queued,running,&model=a%20b&after=job_1&limit=7&other=1"))
    assert (page.which.states, page.which.model) == (frozenset({JobState.QUEUED, JobState.RUNNING}), "a b")
    assert (page.after, page.limit) == ("job_1", 7)


def test_a_timeout() -> None:
    assert timeout_of({}) is None
    assert timeout_of({"timeout": "60"}) == 60.0
    for wrong in ("0", "-1", "1.5", "", "x", "9" * 100):
        with pytest.raises(InvalidArgument, match="'timeout'"):
            timeout_of({"timeout": wrong})


def test_a_list_with_numbers_that_json_has_no_word_for() -> None:
    inputs = [{"name": "X", "datatype": "FP32", "shape": [3], "data": [float("nan"), float("inf"), 1]}]
    text = json.dumps({"requests": [{"model_name": "m", "custom_id": "c", "inputs": inputs}], "timeout": 3}).encode()
    listed = read_job_list(text)
    (raw,) = listed.requests
    named = read_listed_request(raw)
    assert (named.model_name, named.custom_id, listed.timeout) == ("m", "c", 3.0)
    decoded = decode_infer_request(memoryview(raw), None, model_name="m", model_version=-1, max_input_size=1000)
    assert repr(decoded.request.inputs[0].as_numpy().tolist()) == "[nan, inf, 1.0]"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"requests": []}',
        b'{"requests": NaN}',
        b'{"requests": [], "metadata": {"a": NaN}}',
        b'{"requests": [1], "timeout": 0}',
        b'{"requests": [1], "timeout": 1e400}',
        b'{"requests": [' + b"1," * MAX_ITEMS + b"1]}",
        b'{"requests": [' + b"NaN," * MAX_ITEMS + b"1]}",
        b'{"requests": [' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"]}",
        b'{"requests": [{"custom_id": "\\ud800"}]}',
    ],
)
def test_a_list_that_is_none(text: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_job_list(text)


@pytest.mark.parametrize("metadata", [{"a": 1}, {"a": "x" * 513}, {"x" * 513: ""}, {str(i): "" for i in range(17)}])
def test_metadata_are_few_short_texts(metadata: dict[str, object]) -> None:
    listed = read_job_list(json.dumps({"requests": [1], "metadata": metadata}).encode())
    with pytest.raises(InvalidArgument, match="'metadata': expected at most 16 texts"):
        listed.checked_metadata()


def test_versions_in_a_list() -> None:
    for given, expected in (("3", 3), (3, 3), ("", -1), (None, -1)):
        text = json.dumps({"model_name": "m", "model_version": given}).encode()
        assert read_listed_request(text).version == expected
    for wrong in ("x", "-1", "9" * 30):
        with pytest.raises(InvalidArgument, match="expected digits"):
            _ = read_listed_request(json.dumps({"model_name": "m", "model_version": wrong}).encode()).version


def test_jobs_as_json() -> None:
    assert job_json(JOB) == {
        "id": "job_1",
        "object": "job",
        "state": "queued",
        "counts": {
            "total": 2,
            "queued": 2,
            "running": 0,
            "succeeded": 0,
            "failed": 0,
            "cancelled": 0,
            "expired": 0,
        },
        "created_at": 1.0,
        "expires_at": 9.0,
        "bytes": 0,
        "model_name": "m",
    }
    ended = Job(
        "job_2",
        "ann",
        "m",
        3,
        JobState.FAILED,
        Counts(failed=1),
        1.0,
        9.0,
        started=2.0,
        ended=3.0,
        metadata={"a": "b"},
        error=ItemError("INTERNAL", "no"),
    )
    body = job_json(ended)
    assert (body["model_version"], body["started_at"], body["ended_at"]) == ("3", 2.0, 3.0)
    assert (body["metadata"], body["error"]) == ({"a": "b"}, {"kind": "INTERNAL", "message": "no"})
    assert page_json([ended, JOB], 2)["next"] == "job_1"
    assert "next" not in page_json([JOB], 2)
