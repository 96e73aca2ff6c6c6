"""One answer from the answers of all replicas: the repository index, and statistics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

READY = "READY"
# Not sums, but the latest.
_LATEST = frozenset({"last_inference"})
# What names an entry of a list, by which entries of several replicas are joined.
_KEYS = ("name", "version", "batch_size", "type", "id")


def merged_index(indexes: Mapping[str, Sequence[Mapping[str, str]]], *, ready: bool = False) -> list[dict[str, str]]:
    """An entry for each model version that any replica has. Where replicas differ, the state is the worst one's, and
    the reason says how many differ. With `ready` only what all replicas serve."""
    found: dict[tuple[str, str, str], dict[str, Mapping[str, str]]] = {}
    for replica, index in indexes.items():
        for entry in index:
            key = (entry.get("namespace", ""), entry["name"], entry.get("version", ""))
            found.setdefault(key, {})[replica] = entry
    merged = [_merged_entry(key, entries, list(indexes)) for key, entries in sorted(found.items())]
    return [entry for entry in merged if entry.get("state") == READY] if ready else merged


def _merged_entry(
    key: tuple[str, str, str], entries: Mapping[str, Mapping[str, str]], replicas: Sequence[str]
) -> dict[str, str]:
    states = {replica: entries.get(replica, {}).get("state", "") for replica in replicas}
    first = next(iter(entries.values()))
    if len(set(states.values())) == 1:
        return dict(first)
    odd = {replica: state for replica, state in states.items() if state != READY}
    replica, state = next(iter(odd.items()))
    reason = entries.get(replica, {}).get("reason", "")
    where = ", ".join(f"{name}: {state or 'not there'}" for name, state in odd.items())
    ready = len(states) - len(odd)
    text = f"{READY} on {ready} of {len(states)} replicas; {where}" + (f" ({reason})" if reason else "")
    namespace, name, version = key
    members = {"namespace": namespace, "version": version, "state": state or "UNAVAILABLE", "reason": text}
    return {"name": name, **{member: value for member, value in members.items() if value}}


def merged_statistics(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts and durations are summed up."""
    return {"model_stats": _merged_lists([answer.get("model_stats", []) for answer in answers])}


def _merged(values: Sequence[Any], name: str = "") -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        members = dict.fromkeys(member for value in values for member in value)
        return {member: _merged([value[member] for value in values if member in value], member) for member in members}
    if isinstance(first, list):
        return _merged_lists(values)
    if isinstance(first, bool) or not isinstance(first, int | float) or name in _KEYS:
        return first
    return max(values) if name in _LATEST else sum(values)


def _merged_lists(lists: Sequence[Sequence[Any]]) -> list[Any]:
    joined: dict[tuple[Any, ...], list[Any]] = {}
    for entries in lists:
        for entry in entries:
            joined.setdefault(tuple(entry.get(key) for key in _KEYS), []).append(entry)
    return [_merged(same) for same in joined.values()]
