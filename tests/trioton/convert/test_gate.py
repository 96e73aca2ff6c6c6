"""The gate on arrays: what is wrong with an answer is found, and rounding is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trioton.convert.cases import Case, plan_cases
from trioton.convert.gate import ANSWER, EQUAL, TOP1, Verdict, judge, self_check
from trioton.convert.tensors import Array, Arrays, Description, TensorSpec
from trioton.convert.tolerances import TOLERANCES, Precision

DESCRIPTION = Description((TensorSpec("x", "FP32", (4,)),), is_batching=True)
WEIGHTS = np.random.default_rng(0).standard_normal((4, 3))


def model(inputs: Arrays) -> Arrays:
    x = inputs["x"].astype(np.float64)
    scores = x @ WEIGHTS
    return {"scores": scores, "class": np.argmax(scores, axis=1)}


def cases(rows: int = 12) -> list[Case]:
    generator = np.random.default_rng(1)
    samples = [{"x": generator.standard_normal(4).astype(np.float32)} for _ in range(rows)]
    return plan_cases(samples, DESCRIPTION, 8)


def verdict_of(
    answer: Callable[[Arrays], Arrays | str],
    precision: Precision = Precision.FP32,
    own: dict[str, Arrays] | None = None,
) -> Verdict:
    asked = cases()
    reference = {case.name: model(case.inputs) for case in asked if case.name == case.asks}
    answers = {case.name: answer(case.inputs) for case in asked}
    return judge(asked, reference, own or {}, answers, TOLERANCES[precision])


def narrow(inputs: Arrays) -> Arrays:
    return {name: array.astype(np.float32) if name == "scores" else array for name, array in model(inputs).items()}


def scaled(by: float) -> Callable[[Arrays], Arrays]:
    return lambda inputs: {**model(inputs), "scores": model(inputs)["scores"] * by}


def test_rounding_passes() -> None:
    found = verdict_of(narrow)
    assert found.is_passed
    assert 0 < (found.worst("error") or 0) < 1e-6
    assert not found.failures


@pytest.mark.parametrize("factor", [1.01, 0.99, 1.001])
def test_a_factor_does_not_pass(factor: float) -> None:
    found = verdict_of(scaled(factor))
    assert not found.is_passed
    assert all(finding.check == "error" for finding in found.failures)


def test_half_precision_may_be_further_away_where_it_is_asked_for() -> None:
    assert verdict_of(scaled(1.002), Precision.FP16).is_passed
    assert not verdict_of(scaled(1.03), Precision.FP16).is_passed
    assert verdict_of(scaled(1.03), Precision.INT8).is_passed
    assert not verdict_of(scaled(1.3), Precision.INT8).is_passed


def test_one_row_of_many_that_is_wrong() -> None:
    def answer(inputs: Arrays) -> Arrays:
        found = model(inputs)
        found["scores"][-1] *= -1
        return found

    assert not verdict_of(answer).is_passed
    assert not verdict_of(answer, Precision.INT8).is_passed


def broken(change: Callable[[Arrays], object]) -> Callable[[Arrays], Arrays]:
    def answer(inputs: Arrays) -> Arrays:
        found = model(inputs)
        change(found)
        return found

    return answer


def nan_in(found: Arrays) -> None:
    found["scores"][0, 0] = np.nan


def wrong_shape(found: Arrays) -> None:
    found["scores"] = found["scores"][:, :2]


def one_row_only(found: Arrays) -> None:
    found["scores"] = found["scores"][:1]


@pytest.mark.parametrize("change", [nan_in, wrong_shape, one_row_only, lambda found: found.pop("scores")])
@pytest.mark.parametrize("precision", Precision)
def test_what_no_precision_allows(change: Callable[[Arrays], object], precision: Precision) -> None:
    found = verdict_of(broken(change), precision)
    assert any(finding.check == ANSWER for finding in found.failures)


def test_an_answer_that_failed() -> None:
    found = verdict_of(lambda inputs: "model 'm' failed: no")
    assert {finding.detail for finding in found.failures} == {"model 'm' failed: no"}


def test_no_answer_at_all_is_no_pass() -> None:
    assert not judge(
        cases(), {case.name: model(case.inputs) for case in cases()}, {}, {}, TOLERANCES[Precision.FP32]
    ).is_passed
    assert not Verdict(()).is_passed


def test_integers_are_equal_or_as_unequal_as_the_source_itself() -> None:
    def other_class(inputs: Arrays) -> Arrays:
        return {**model(inputs), "class": np.zeros(len(inputs["x"]), np.int64)}

    assert any(finding.check == EQUAL for finding in verdict_of(other_class).failures)
    own = {case.name: other_class(case.inputs) for case in cases()}
    assert verdict_of(other_class, own=own).is_passed


def test_the_sources_own_rounding_is_allowed_but_not_any() -> None:
    own = {case.name: scaled(1.001)(case.inputs) for case in cases()}
    assert verdict_of(scaled(1.001), own=own).is_passed
    assert not verdict_of(scaled(1.1), own={case.name: scaled(1.1)(case.inputs) for case in cases()}).is_passed


def test_classes_that_change_are_counted_over_all_rows() -> None:
    def reversed_scores(inputs: Arrays) -> Arrays:
        return {**model(inputs), "scores": model(inputs)["scores"][:, ::-1]}

    [finding] = [each for each in verdict_of(reversed_scores, Precision.INT8).findings if each.check == TOP1]
    assert not finding.is_passed
    assert finding.case == f"{sum(case.rows for case in cases())} rows"


def centred(array: Array) -> Array:
    return np.asarray(array - array.mean(axis=0))


def test_rows_that_affect_each_other_are_found_in_the_source() -> None:
    asked = cases()
    independent = {case.name: model(case.inputs) for case in asked}
    assert self_check(asked, independent) is None
    together = {case.name: {"scores": centred(model(case.inputs)["scores"])} for case in asked}
    alone = {name: {"scores": 0 * answer["scores"]} for name, answer in together.items() if name.endswith("alone")}
    found = self_check(asked, {**together, **alone})
    assert found is not None
    assert found.case == "batch 8, alone"
