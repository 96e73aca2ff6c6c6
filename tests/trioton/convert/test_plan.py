"""The plan: which steps run for which targets, in which order, and what is refused before anything runs."""

from __future__ import annotations

import pytest

from trioton.convert.plan import plan_of, wanted_targets
from trioton.convert.sources import Source, SourceKind
from trioton.convert.targets import AS_IS, DEFAULTS, TARGETS, refusal
from trioton.convert.tolerances import Precision
from trioton.flags.fields import UsageError

NET = Source(SourceKind.MODULE, "/home/net.py", "make")
GRAPH = Source(SourceKind.ONNX, "/home/graph.onnx")


def test_each_step_comes_after_what_it_needs() -> None:
    plan = plan_of(NET, ["openvino", "onnx", "pt2"])
    assert [(step.name, step.after) for step in plan.steps] == [("onnx", ""), ("openvino", "onnx"), ("pt2", "")]
    assert plan.steps[1].arguments["made_of"] == plan.candidates[1].file == "made/onnx/model.onnx"
    assert [(each.name, each.made_by) for each in plan.candidates] == [
        ("openvino", "openvino"),
        ("onnx", "onnx"),
        ("pt2", "pt2"),
    ]


def test_what_is_there_is_not_made() -> None:
    plan = plan_of(GRAPH, [AS_IS, "openvino"], [("mine:int8", "/home/mine.xml")])
    assert [(step.name, step.after, step.arguments["made_of"]) for step in plan.steps] == [
        ("openvino", "", "/home/graph.onnx")
    ]
    assert [(each.name, each.made_by, each.precision) for each in plan.candidates] == [
        (AS_IS, "", Precision.FP32),
        ("openvino", "openvino", Precision.FP32),
        ("mine", "", Precision.INT8),
    ]


@pytest.mark.parametrize("kind", SourceKind)
def test_the_defaults_can_be_made_and_are_of_full_precision(kind: SourceKind) -> None:
    plan = plan_of(Source(kind, "/home/m", "make"), DEFAULTS[kind])
    assert plan.candidates
    assert all(not refusal(name, kind) for name in DEFAULTS[kind])
    assert all(each.precision is Precision.FP32 and each.is_portable for each in plan.candidates)
    assert not plan.calibrates


@pytest.mark.parametrize("kind", SourceKind)
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_refused_or_ends_in_a_candidate(kind: SourceKind, target: str) -> None:
    if refusal(target, kind):
        with pytest.raises(UsageError, match="--to: "):
            wanted_targets([target], kind, has_samples=True)
        return
    [candidate] = plan_of(Source(kind, "/home/m", "make"), wanted_targets([target], kind, has_samples=True)).candidates
    assert candidate.backend == TARGETS[target].backend
    assert candidate.precision is TARGETS[target].precision


def test_a_target_that_is_asked_for_twice_is_made_once() -> None:
    assert wanted_targets(["onnx", "pt2", "onnx"], SourceKind.MODULE, has_samples=False) == ("onnx", "pt2")


def test_what_is_calibrated_needs_samples() -> None:
    with pytest.raises(UsageError, match="calibrated with real data"):
        wanted_targets(["onnx-int8"], SourceKind.ONNX, has_samples=False)
    assert plan_of(GRAPH, wanted_targets(["onnx-int8"], SourceKind.ONNX, has_samples=True)).calibrates


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("mine", "/home/mine.tflite", "no format that is served"),
        ("mine:int4", "/home/mine.onnx", "expected a precision"),
    ],
)
def test_candidates_that_cannot_be_judged(name: str, file: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan_of(GRAPH, [AS_IS], [(name, file)])
