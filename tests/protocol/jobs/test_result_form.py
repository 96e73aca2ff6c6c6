"""How a result is written is kept with its item."""

from __future__ import annotations

from protocol.jobs.result_form import ResultForm


def test_it_comes_back() -> None:
    for form in (ResultForm(), ResultForm(is_generate=True), ResultForm(False, True, {"A": False}, True)):
        assert ResultForm.decode(form.encode()) == form
