"""The report as a page: all that was found is in it, and names of others stay text."""

from __future__ import annotations

import msgspec

from tests.trioton.report.samples import HOSTILE
from trioton.convert.choice import Bound, Load, Speed
from trioton.convert.gate import Finding, Verdict
from trioton.convert.page import page_of
from trioton.convert.report import Outcome, Report
from trioton.convert.tolerances import TOLERANCES, Precision


def load(concurrency: int, rate: float, p99: float) -> Load:
    return Load(concurrency, rate, {"p50": p99 / 2, "p90": p99, "p95": p99, "p99": p99}, 100)


FAST = Speed(
    ((load(1, 900.0, 1.0), load(4, 1700.0, 3.0)), (load(1, 1100.0, 1.1), load(4, 1900.0, 3.3))), memory_bytes=98_000_000
)
REPORT = Report(
    model="net",
    source="/home/net.onnx",
    kind="ONNX",
    source_files={"/home/net.onnx": "ab" * 32},
    reference="float64",
    reference_reason="",
    samples="20 samples of rows.npz",
    is_proven=True,
    cases=("batch 1", "batch 8"),
    outcomes=(
        Outcome(
            "fast",
            "onnxruntime",
            Precision.FP32,
            TOLERANCES[Precision.FP32],
            verdict=Verdict((Finding("error", "batch 8", True, "scores", 1.5e-7, 1e-4),)),
            speed=FAST,
            versions={"onnxruntime": "1.32.0"},
        ),
        Outcome(
            "wrong",
            "openvino",
            Precision.FP32,
            TOLERANCES[Precision.FP32],
            verdict=Verdict((Finding("error", "batch 8", False, "scores", 0.25, 1e-4),)),
        ),
        Outcome("absent", "pytorch", Precision.FP32, TOLERANCES[Precision.FP32], error=HOSTILE),
    ),
    bound=Bound("p99", 20.0),
    chosen="fast",
    why="chosen: fast, the only one that has passed",
    environment={"machine": "x86_64"},
    command="trioton convert net.onnx models",
)


def test_all_that_was_found_is_on_the_page() -> None:
    html = page_of(REPORT).html()
    for words in (
        "chosen: fast, the only one that has passed",
        "Not passed: wrong, absent",
        "batch 8, output &#x27;scores&#x27;: error 0.25 (allowed 0.0001)",
        "Rate and latency (p99)",
        "p99:20ms",
        "ab" * 32,
        "trioton convert net.onnx models",
        "1.32.0",
    ):
        assert words in html.replace("&#39;", "&#x27;"), words
    assert "UNPROVEN" not in html
    assert "UNPROVEN" in page_of(msgspec.structs.replace(REPORT, is_proven=False)).html()


def test_names_of_others_are_text() -> None:
    assert "<script" not in page_of(REPORT).html()
    assert "<img" not in page_of(msgspec.structs.replace(REPORT, model=HOSTILE, command=HOSTILE)).html()


def test_where_nothing_was_measured_there_are_no_plots() -> None:
    outcomes = tuple(msgspec.structs.replace(each, speed=None) for each in REPORT.outcomes)
    html = page_of(msgspec.structs.replace(REPORT, outcomes=outcomes, bound=None)).html()
    assert "<svg" not in html
    assert "<svg" in page_of(REPORT).html()
