"""`trioton doctor`: checks whether a server would load every model of some repositories, and suggests fixes.

Flow: repositories → `layout_checks` → for each model `model_checks`, prepared as by a server (`prepared`) → `findings`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from repository.layout import DUPLICATE_MODEL, ModelDirectory, find_models
from trioton.flags.fields import Flag, UsageError
from trioton.flags.store import local_path
from trioton.tools.findings import Finding, Report
from trioton.tools.flags import OutputFlags, ToolFlags, parse_words, tool_table
from trioton.tools.layout_checks import repository_findings
from trioton.tools.model_checks import ModelCheck
from trioton.tools.prepared import PreparedModels, model_loader
from trioton.tools.quiet import without_log


def doctor_table() -> tuple[Flag, ...]:
    return tool_table(OutputFlags)


def run_doctor(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Print the report; answers the exit code: 1 if there is an error in it.

    Raises:
        UsageError: see `trioton.flags`; no repository.
    """
    parsed = parse_words(OutputFlags, words, environment)
    if not parsed.places:
        raise UsageError("trioton doctor takes one or more model repositories, got none")
    with without_log():
        report = trio.run(examine, [local_path(place) for place in parsed.places], parsed.tool)
    print(json.dumps(report.as_json(), indent=2) if parsed.own.get("json") else report.as_text())
    return 1 if report.has_errors else 0


async def examine(repositories: Sequence[Path], flags: ToolFlags) -> Report:
    """Look at every model of the repositories. Models of Python run their `auto_complete_config`, unless the flags turn
    completion off; nothing else of them runs."""
    report = Report([str(path) for path in repositories])
    for path in repositories:
        report.about_repositories += await trio.to_thread.run_sync(repository_findings, path)
    if report.has_errors:
        return report
    found = await trio.to_thread.run_sync(find_models, repositories)
    models = PreparedModels(await model_loader(flags), found.models)
    for name in sorted({*found.models, *found.duplicates}):
        places = found.duplicates.get(name)
        report.models[name] = (
            [_duplicate(places)] if places else await ModelCheck(found.models[name], models).findings()
        )
    return report


def _duplicate(places: Sequence[ModelDirectory]) -> Finding:
    paths = " and ".join(str(place.path) for place in places)
    return Finding(f"{DUPLICATE_MODEL}: {paths}", "rename or remove one of them: none of them would be served")
