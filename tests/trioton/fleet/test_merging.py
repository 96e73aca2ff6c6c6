"""One index, and one set of statistics, from those of all replicas."""

from __future__ import annotations

from typing import Any

from trioton.fleet.merging import merged_index, merged_statistics

READY = {"name": "m", "version": "1", "state": "READY"}
FAILED = {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "no file"}


def test_where_all_agree_the_entry_is_theirs() -> None:
    assert merged_index({"a": [READY, {"name": "n"}], "b": [READY, {"name": "n"}]}) == [READY, {"name": "n"}]


def test_where_they_differ_the_reason_says_how() -> None:
    [entry] = merged_index({"a": [READY], "b": [FAILED], "c": [READY]})
    assert entry == {
        "name": "m",
        "version": "1",
        "state": "UNAVAILABLE",
        "reason": "READY on 2 of 3 replicas; b: UNAVAILABLE (no file)",
    }


def test_what_some_do_not_have_is_not_ready() -> None:
    [entry] = merged_index({"a": [READY], "b": []})
    assert entry["state"] == "UNAVAILABLE"
    assert entry["reason"] == "READY on 1 of 2 replicas; b: not there"


def test_ready_is_what_all_serve() -> None:
    other = {**READY, "name": "n"}
    assert merged_index({"a": [READY, other], "b": [FAILED, other]}, ready=True) == [other]


def stats(count: int, last: int, batches: dict[int, int]) -> dict[str, Any]:
    return {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "last_inference": last,
                "inference_count": count,
                "inference_stats": {"success": {"count": count, "ns": count * 10}},
                "batch_stats": [
                    {"batch_size": size, "compute_infer": {"count": many, "ns": many}} for size, many in batches.items()
                ],
                "memory_usage": [{"type": "CPU", "id": 0, "byte_size": 100}],
            }
        ]
    }


def test_statistics_are_sums() -> None:
    [found] = merged_statistics([stats(1, 5, {1: 2}), stats(2, 3, {1: 3, 4: 1})])["model_stats"]
    assert found["inference_count"] == 3
    assert found["last_inference"] == 5
    assert found["inference_stats"]["success"] == {"count": 3, "ns": 30}
    assert {each["batch_size"]: each["compute_infer"]["count"] for each in found["batch_stats"]} == {1: 5, 4: 1}
    assert found["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": 200}]


def test_models_that_one_replica_has_are_shown() -> None:
    assert merged_statistics([{"model_stats": []}, stats(1, 1, {})]) == stats(1, 1, {})
