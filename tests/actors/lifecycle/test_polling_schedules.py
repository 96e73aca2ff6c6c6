"""Random edits of random repositories, while they are polled: what serves in the end is what is there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from actors.core.server_core import ServerCore
from protocol.messages import InferenceRequest
from tests.actors.core.test_server_core import PBTXT
from tests.actors.fakes import tensor
from tests.actors.polling import SETTLED, Weights, polling, write

NAMES = ("a", "b")
VERSIONS = (1, 2, 3)
CONFIGS = {
    "all": f"{PBTXT} version_policy {{ all {{ }} }}",
    "latest": PBTXT,
    "first": f"{PBTXT} version_policy {{ specific {{ versions: [ 1 ] }} }}",
    "small": f"{PBTXT.replace('max_batch_size: 4', 'max_batch_size: 1')} version_policy {{ all {{ }} }}",
    "two instances": f"{PBTXT} version_policy {{ all {{ }} }} instance_group {{ count: 2 }}",
    "broken": "max_batch_size: many",
}
Served: TypeAlias = dict[int, str]


@dataclass
class Disk:
    """The models as they lie in the two repositories; `edit` changes them there too."""

    root: Path
    configs: dict[Path, str] = field(default_factory=dict)
    weights: dict[Path, dict[int, str | None]] = field(default_factory=dict)

    @property
    def repositories(self) -> list[Path]:
        return [self.root / "one", self.root / "two"]

    def edit(self, what: tuple[str, ...], repository: int, name: str) -> None:
        model = self.repositories[repository] / name
        match what:
            case ("write", version, text):
                write(model / version / "weights", text)
                self.weights.setdefault(model, {})[int(version)] = text
            case ("spoil", version):  # a version without what it needs
                if int(version) in self.weights.get(model, {}):
                    (model / version / "weights").unlink(missing_ok=True)
                    write(model / version / "other", "")
                    self.weights[model][int(version)] = None
            case ("remove version", version):
                shutil.rmtree(model / version, ignore_errors=True)
                self.weights.get(model, {}).pop(int(version), None)
            case ("config", kind):
                write(model / "config.pbtxt", CONFIGS[kind])
                self.configs[model] = kind
            case ("remove",):
                shutil.rmtree(model, ignore_errors=True)
                self.configs.pop(model, None)
                self.weights.pop(model, None)

    def wanted(self, name: str) -> Served | None:
        """What should serve; None where that cannot be loaded as it is."""
        places = [repository / name for repository in self.repositories if self._is_there(repository / name)]
        if not places:
            return {}
        if len(places) > 1:
            return None
        (model,) = places
        versions = self.weights.get(model, {})
        selected = {
            "all": set(versions),
            "small": set(versions),
            "two instances": set(versions),
            "latest": {max(versions, default=0)} & set(versions),
            "first": {1} & set(versions),
        }.get(self.configs.get(model, "broken"), set())
        served = {version: text for version in selected if (text := versions[version]) is not None}
        return served if served and len(served) == len(selected) else None

    def instances(self, name: str) -> int:
        (model,) = [repository / name for repository in self.repositories if self._is_there(repository / name)]
        return 2 if self.configs[model] == "two instances" else 1

    def _is_there(self, model: Path) -> bool:
        return model.is_dir() and any(path.is_file() for path in model.rglob("*"))


EDITS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from([str(each) for each in VERSIONS]), st.text("xyz", max_size=3)),
    st.tuples(st.just("spoil"), st.sampled_from([str(each) for each in VERSIONS])),
    st.tuples(st.just("remove version"), st.sampled_from([str(each) for each in VERSIONS])),
    st.tuples(st.just("config"), st.sampled_from([*CONFIGS, "all", "all", "all"])),
    st.tuples(st.just("remove")),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(EDITS, st.sampled_from([0, 0, 0, 1]), st.sampled_from(NAMES)),
        st.sampled_from([0.2, 1.0, SETTLED]),
    ),
    max_size=25,
)


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_what_serves_is_what_is_there(steps: Sequence[tuple[tuple[str, ...], int, str] | float]) -> None:
    """Whenever the files have come to rest; and a model that serves answers all the time until it is taken away."""
    with tempfile.TemporaryDirectory() as folder:
        trio.run(_run, Path(folder), steps, clock=MockClock(autojump_threshold=0))


async def _run(root: Path, steps: Sequence[tuple[tuple[str, ...], int, str] | float]) -> None:
    disk = Disk(root)
    for repository in disk.repositories:
        repository.mkdir()
    for name in NAMES:
        disk.edit(("config", "all"), 0, name)
        disk.edit(("write", "1", "start"), 0, name)
    weights = Weights()
    serving = set(NAMES)
    async with polling(*disk.repositories, backend=weights.backend) as core:
        for step in [*steps, SETTLED, SETTLED]:
            if isinstance(step, float):
                await trio.sleep(step)
            else:
                disk.edit(*step)
            serving -= {name for name in NAMES if disk.wanted(name) == {}}
            for name in serving:
                assert (await core.infer(InferenceRequest(name, [tensor()], id=name))).id == name
            if step == SETTLED:
                await _check(core, disk, weights)
                serving = {name for name in NAMES if disk.wanted(name)}


async def _check(core: ServerCore, disk: Disk, weights: Weights) -> None:
    index = await core.repository_index()
    ready = {(entry.name, int(entry.version)) for entry in index if entry.state == "READY"}
    loaded = [
        (made.spec.source.name, made.spec.source.version, getattr(made, "weights", ""))
        for made in weights.backend.made
        if made.is_loaded
    ]
    assert {(name, version) for name, version, _ in loaded} == ready, "nothing is loaded that does not serve"
    for name in NAMES:
        wanted = disk.wanted(name)
        if wanted is not None:
            here = sorted((version, text) for owner, version, text in loaded if owner == name)
            count = disk.instances(name) if wanted else 0
            assert here == sorted((version, text) for version, text in wanted.items() for _ in range(count))
        else:
            reasons = [entry.reason for entry in index if entry.name == name and entry.reason not in ("", "unloaded")]
            assert reasons, "what cannot be loaded is said"
