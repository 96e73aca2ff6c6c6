"""Step: the user's own check of a candidate's answers, `check(inputs, outputs, reference)` in a Python file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from trioton.convert.cases import Way
from trioton.convert.storage import load_answers, load_cases


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """`failed`: by the name of the case, why it is not good."""
    path = Path(arguments["check"])
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"'{path}' cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answers, reference = load_answers(Path(arguments["answers"])), load_answers(Path(arguments["reference"]))
    failed: dict[str, str] = {}
    cases = [case for case in load_cases(Path(arguments["cases"])) if case.way is Way.TOGETHER]
    for case in cases:
        answer = answers[case.name]
        if isinstance(answer, str):
            continue  # the gate tells it
        try:
            if module.check(case.inputs, answer, reference[case.name]) is False:
                failed[case.name] = "check() answered False"
        except Exception as error:
            traceback.print_exc()
            failed[case.name] = f"{type(error).__name__}: {error}"
    return {"failed": failed, "cases": [case.name for case in cases]}
