"""Details of one model for the console: its versions, their instances, and the targets of a traffic split. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from actors.lifecycle.table import ModelEntry, ModelState, VersionEntry
from actors.model.servable import Servable
from protocol.console.records import LONGEST_NAME, InstanceRow, ModelDetails, TargetRow, VersionDetails, cut
from repository.traffic_split import is_split, split_of


def model_details(entry: ModelEntry) -> ModelDetails:
    versions = [_version(entry, each) for each in sorted(entry.versions.values(), key=lambda each: each.version)]
    return ModelDetails(entry.name, versions, entry.needs, cut(entry.failure or entry.reload_failure))


def _version(entry: ModelEntry, version: VersionEntry) -> VersionDetails:
    reason = cut(entry.reload_failure if version.state is ModelState.READY else version.reason)
    model = version.model or entry.evicted.get(version.version)
    if model is None:
        return VersionDetails(str(version.version), version.state.value, reason)
    return VersionDetails(
        str(version.version),
        version.state.value,
        reason,
        load_seconds=round(version.load_seconds, 3),
        is_decoupled=model.is_decoupled,
        open_sequences=model.open_sequences,
        instances=[
            InstanceRow(cut(each.name, LONGEST_NAME), each.state, each.restarts, cut(each.last_error), each.device)
            for each in model.instances()
        ],
        memory=model.memory_usage(),
        targets=_targets(model) if is_split(model.config) else (),
    )


def _targets(model: Servable) -> Sequence[TargetRow]:
    split = split_of(model.config)
    routed = {(name, version, role): count for name, version, role, count in model.routed()}
    targets = [
        TargetRow(
            each.model, each.version, each.weight, requests=routed.get((each.model, str(each.version), "primary"), 0)
        )
        for each in split.targets
    ]
    shadows = [
        TargetRow(
            each.model,
            each.version,
            percent=each.percent,
            requests=routed.get((each.model, str(each.version), "shadow"), 0),
        )
        for each in split.shadows
    ]
    return [*targets, *shadows]
