"""What can go on serving after a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from repository.changes import LoadedFrom, has_same_instances, unchanged_versions
from repository.fingerprint import Fingerprint
from repository.pbtxt import parse_pbtxt

CONFIG = 'name: "m" backend: "fake" max_batch_size: 4'
FILES: Fingerprint = (("1/model", 1, 1), ("2/model", 1, 1), ("config.pbtxt", 1, 1), ("labels.txt", 1, 1))


def loaded(config: str = CONFIG, files: Fingerprint = FILES, path: str = "/models/m") -> LoadedFrom:
    return LoadedFrom(parse_pbtxt(config, source="config.pbtxt"), files, Path(path))


def changed(name: str) -> Fingerprint:
    return tuple(sorted({file for file in FILES if file[0] != name} | {(name, 2, 2)}))


@pytest.mark.parametrize(
    ("now", "unchanged"),
    [
        (loaded(), {1, 2}),
        (loaded(path="/elsewhere/m"), set()),
        (loaded(files=changed("config.pbtxt")), {1, 2}),
        (loaded(files=changed("configs/other.pbtxt")), {1, 2}),
        (loaded(files=changed("2/model")), {1}),
        (loaded(files=changed("2/more")), {1}),
        (loaded(files=changed("3/model")), {1, 2}),
        (loaded(files=FILES[1:]), {2}),
        (loaded(files=changed("labels.txt")), set()),
        (loaded(files=changed("warmup/x")), set()),
        (loaded(files=changed("02/model")), set()),
        (loaded(f"{CONFIG} version_policy {{ all {{ }} }}"), {1, 2}),
        (loaded(f"{CONFIG} instance_group {{ count: 2 }}"), {1, 2}),
        (loaded(f"{CONFIG} dynamic_batching {{ }}"), set()),
        (loaded(f'{CONFIG} model_repository_agents {{ agents {{ name: "a" }} }}'), set()),
        (loaded('name: "m" platform: "ensemble"'), set()),
        (loaded('name: "m" backend: "traffic_split"'), set()),
    ],
)
def test_versions_that_need_no_load(now: LoadedFrom, unchanged: set[int]) -> None:
    assert unchanged_versions(loaded(), now) == unchanged


def test_instances_are_told_by_the_configuration() -> None:
    assert has_same_instances(loaded(), loaded(f"{CONFIG} version_policy {{ all {{ }} }}"))
    assert not has_same_instances(loaded(), loaded(f"{CONFIG} instance_group {{ count: 2 }}"))
