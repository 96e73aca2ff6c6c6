"""Which requests have a line in the access log, and what it says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from protocol.log.access_log import OFF, AccessLog, AccessMode, AccessPolicy, Ended
from protocol.log.access_record import BATCH_SIZE, CACHED, INPUT_TOKENS, INSTANCE, OUTPUT_TOKENS, AccessRecord
from protocol.origin import RequestTags
from tests.protocol.http.fake_services import FakeTrace


class Lines:
    """What is written."""

    def __init__(self, policy: AccessPolicy) -> None:
        self.written: list[Any] = []
        self.log = AccessLog(policy, self._write)

    def _write(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        self.written.append(json.loads(line))

    def run(self, *, is_failed: bool = False, late_ns: int = 0, **more: Any) -> None:
        """One request from its begin to its end."""
        record = self.log.begin()
        if record is not None:
            record.started_ns -= late_ns
        self.log.end(record, is_failed, lambda: ended(**more))


def ended(**more: Any) -> Ended:
    return Ended("http", "POST", "/v2/models/m/infer", 200, RequestTags("r"), **more)


def test_off() -> None:
    assert not OFF.is_on
    assert not OFF.measures
    assert OFF.begin() is None


def test_errors_alone_measure_nothing_before() -> None:
    lines = Lines(AccessPolicy(AccessMode.ERRORS))
    assert lines.log.is_on
    assert not lines.log.measures
    assert lines.log.begin() is None
    lines.run()
    lines.run(is_failed=True, own_id="1", started_ns=1)
    (line,) = lines.written
    assert line["id"] == "1"
    assert line["duration_us"] > 1_000
    assert "queue_us" not in line


def test_all() -> None:
    lines = Lines(AccessPolicy(AccessMode.ALL))
    for is_failed in (False, True, False):
        lines.run(is_failed=is_failed)
    assert len(lines.written) == 3


@pytest.mark.parametrize("every", [1, 2, 10])
def test_samples_and_all_failures(every: int) -> None:
    lines = Lines(AccessPolicy(AccessMode.SAMPLE, every))
    for _ in range(100):
        lines.run()
    assert len(lines.written) == 100 // every
    for _ in range(every):
        lines.run(is_failed=True)
    assert len(lines.written) == 100 // every + every


@pytest.mark.parametrize("mode", [AccessMode.ERRORS, AccessMode.SAMPLE])
def test_slow_ones_too(mode: AccessMode) -> None:
    lines = Lines(AccessPolicy(mode, 1_000_000, slow_ms=1000))
    assert lines.log.measures
    lines.run()
    lines.run(late_ns=999_000_000)
    lines.run(late_ns=1_000_000_000)
    assert [line["duration_us"] >= 1_000_000 for line in lines.written] == [True]


def test_a_request_ends_once() -> None:
    lines = Lines(AccessPolicy(AccessMode.ALL))
    record = lines.log.begin()
    for _ in range(3):
        lines.log.end(record, True, ended)
    assert len(lines.written) == 1


def test_what_cannot_be_described_is_told() -> None:
    lines = Lines(AccessPolicy(AccessMode.ALL))

    def fail() -> Ended:
        raise ValueError("a\nb")

    lines.log.end(lines.log.begin(), False, fail)
    assert lines.written == [{"error": "an access line could not be written: ValueError('a\\nb')"}]


def test_all_fields() -> None:
    lines = Lines(AccessPolicy(AccessMode.ALL))
    record = lines.log.begin()
    assert record is not None
    for activity, ns in (
        ("QUEUE_START", 1_000),
        ("COMPUTE_START", 4_000),
        ("COMPUTE_INPUT_END", 5_000),
        ("COMPUTE_OUTPUT_START", 8_000),
        ("COMPUTE_END", 9_000),
    ):
        record.stamp(activity, ns)
    record.identify(3, "own")
    record.annotate({INSTANCE: "m_0", BATCH_SIZE: 4})
    record.annotate({CACHED: False, INPUT_TOKENS: 7, OUTPUT_TOKENS: 9})
    tags = RequestTags("r-1", "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "alice")
    made = Ended(
        *("grpc", "ModelInfer", "/inference.GRPCInferenceService/ModelInfer", "OK", tags),
        own_id="own",
        model="m",
        client="[::1]:5",
        bytes_in=10,
        bytes_out=20,
        error=" two \n words ",
    )
    lines.log.end(record, False, lambda: made)
    (line,) = lines.written
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("time"))
    assert line.pop("duration_us") >= 0
    assert line == {
        "protocol": "grpc",
        "method": "ModelInfer",
        "path": "/inference.GRPCInferenceService/ModelInfer",
        "status": "OK",
        "bytes_in": 10,
        "bytes_out": 20,
        "cancelled": False,
        "request_id": "r-1",
        "id": "own",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "00f067aa0ba902b7",
        "key": "alice",
        "client": "[::1]:5",
        "model": "m",
        "version": "3",
        "instance": "m_0",
        "queue_us": 3,
        "compute_us": 5,
        "batch_size": 4,
        "cached": False,
        "input_tokens": 7,
        "output_tokens": 9,
        "error": "two words",
    }


@pytest.mark.parametrize("text", ['"\n{}', "\ud800", "\x00\u2028", "x" * 10_000])
def test_no_text_breaks_a_line(text: str) -> None:
    lines = Lines(AccessPolicy(AccessMode.ALL))
    lines.run(own_id=text, model=text, error=text)
    (line,) = lines.written
    assert len(line["id"]) < 300
    assert len(line["error"]) < 600


def test_the_requests_own_trace_gets_everything() -> None:
    record, trace = AccessRecord(), FakeTrace("m")
    record.trace = trace
    record.stamp("QUEUE_START", 1)
    record.annotate({"a": 1})
    record.end()
    assert (trace.stamps, trace.attributes, trace.ends) == (["QUEUE_START"], {"a": 1}, 1)
    assert record.child("x") is None
    assert record.context() is None


def test_rounds_add_up() -> None:
    """A request that is computed several times, as one of an iterative sequence, or given back by its instance."""
    record = AccessRecord()
    record.stamp("COMPUTE_START", 5)  # without a queue: nothing to measure from
    for start in (10, 100):
        record.stamp("QUEUE_START", start)
        record.stamp("COMPUTE_START", start + 2)
        record.stamp("COMPUTE_END", start + 5)
    assert (record.queue_ns, record.compute_ns) == (4, 6)
