"""Decides what of a loaded model can keep running when its files have changed (update without reload).

Consulted by the model's life cycle. Pure functions. Source: Triton's rules of an update without reload.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import msgspec

from repository.fingerprint import Fingerprint
from repository.layout import CONFIG_FILE, CONFIGS_DIRECTORY
from repository.model_config import ModelConfig
from repository.traffic_split import is_split


class LoadedFrom(NamedTuple):
    """What a model was loaded from: its configuration as it was read, its files at that time, and where they lie."""

    config: ModelConfig
    files: Fingerprint
    path: Path


def unchanged_versions(before: LoadedFrom, now: LoadedFrom) -> frozenset[int]:
    """The versions whose own files are as they were. None where anything else has changed but files of versions, the
    version policy and the instance groups; an ensemble and a traffic split have none of their own, and repository
    agents see a model as a whole."""
    if now.config.is_ensemble or is_split(now.config) or now.config.model_repository_agents is not None:
        return frozenset()
    if before.path != now.path or _shared_part(before.config) != _shared_part(now.config):
        return frozenset()
    old, new = _by_version(before.files), _by_version(now.files)
    if old[None] != new[None]:
        return frozenset()
    return frozenset(version for version in new if version is not None and old[version] == new[version])


def has_same_instances(before: LoadedFrom, now: LoadedFrom) -> bool:
    return before.config.instance_group == now.config.instance_group


def _shared_part(config: ModelConfig) -> ModelConfig:
    """What all versions and instances have in common."""
    return msgspec.structs.replace(config, version_policy=None, instance_group=())


def _by_version(files: Fingerprint) -> defaultdict[int | None, list[tuple[str, int, int]]]:
    """The files of each version, and by None those that belong to no version. Configurations are left out: what they
    say is compared."""
    found: defaultdict[int | None, list[tuple[str, int, int]]] = defaultdict(list)
    for file in files:
        top, slash, _ = file[0].partition("/")
        if file[0] != CONFIG_FILE and top != CONFIGS_DIRECTORY:
            is_version = bool(slash) and top.isascii() and top.isdigit() and top == str(int(top))
            found[int(top) if is_version else None].append(file)
    return found
