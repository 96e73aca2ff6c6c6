"""Result lines of batches: answers, failures of every kind, tokens."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from protocol.jobs.batches.batch import Batch, TokenUsage
from protocol.jobs.batches.results import ResultLines, answer_parts
from protocol.jobs.job import ItemError
from protocol.jobs.states import JobState
from protocol.jobs.store import Item

BATCH = Batch("batch_ab", "ann", "/v1/completions", "file-1", "payload", 0.0, 1.0)


def answer(body: Any, status: int = 200) -> bytes:
    return b"".join(answer_parts(status, b"r-1", [msgspec.json.encode(body)]))


def item(state: JobState, result: bytes | None = None, error: ItemError | None = None, index: int = 5) -> Item:
    return Item(index, 'a "quoted"\n\N{EURO SIGN}', "m", state, 1, b"", result, error)


def lines(*items: Item) -> tuple[list[Any], list[Any]]:
    answers, failures = ResultLines(BATCH).lines_of(items)
    assert answers.count(b"\n") + failures.count(b"\n") == len(items)
    return [json.loads(line) for line in answers.splitlines()], [json.loads(line) for line in failures.splitlines()]


def test_an_answer() -> None:
    body = {"text": "a\nb", "number": 1.5}
    (answers,), failures = lines(item(JobState.SUCCEEDED, answer(body)))
    assert failures == []
    assert answers == {
        "id": "batch_req_ab00000005",
        "custom_id": 'a "quoted"\n\N{EURO SIGN}',
        "response": {"status_code": 200, "request_id": "r-1", "body": body},
        "error": None,
    }


def test_a_failure_that_was_answered() -> None:
    result = answer({"error": {"message": "no"}}, 400)
    answers, (failure,) = lines(item(JobState.FAILED, result, ItemError("INVALID_ARG", "no")))
    assert answers == []
    assert failure["response"] == {"status_code": 400, "request_id": "r-1", "body": {"error": {"message": "no"}}}
    assert failure["error"] is None


def test_what_has_no_answer_says_why() -> None:
    _, failures = lines(
        item(JobState.FAILED, None, ItemError("INTERNAL", "crashed \ud800")),
        item(JobState.EXPIRED),
        item(JobState.CANCELLED),
        item(JobState.QUEUED),
    )
    assert [failure["response"] for failure in failures] == [None] * 4
    assert [failure["error"]["code"] for failure in failures] == [
        "internal",
        "batch_expired",
        "batch_cancelled",
        "unknown",
    ]
    assert failures[0]["error"]["message"].startswith("crashed")


def test_tokens_are_added_up_in_both_forms() -> None:
    made = ResultLines(BATCH)
    chat = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    response = {"input_tokens": 10, "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 7}}
    bodies: list[Any] = [{"usage": chat}, {"usage": response}, {"usage": None}, {"usage": "many"}, {}, [1]]
    made.lines_of([item(JobState.SUCCEEDED, answer(body)) for body in bodies])
    made.lines_of([item(JobState.FAILED, answer({"usage": chat}, 500))])
    assert made.usage == TokenUsage(input=13, output=24, cached=2, reasoning=7)
