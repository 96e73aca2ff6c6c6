"""The image's files agree with each other, with the project and with the manifests; nothing is built here."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.deploy.manifests import DEPLOY, read

IMAGE = DEPLOY / "image"
ROOT = DEPLOY.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONTAINERFILE = (IMAGE / "Containerfile").read_text()
EVERYWHERE = ("llm", "stores", "redis", "trace")
EXTRAS = {
    "cpu": (*EVERYWHERE, "cpu"),
    "torch": (*EVERYWHERE, "cpu", "torch"),
    "cuda12": (*EVERYWHERE, "gpu-cuda12"),
    "cuda13": (*EVERYWHERE, "gpu"),
}


def locked(flavour: str) -> dict[str, list[str]]:
    """The versions of each package in a lock: more than one where they depend on Python's."""
    found: dict[str, list[str]] = {}
    for line in (IMAGE / "locks" / f"{flavour}.txt").read_text().splitlines():
        if match := re.match(r"([a-z0-9-]+)==([^ ;]+)", line):
            found.setdefault(canonicalize_name(match[1]), []).append(match[2])
    return found


def wanted(flavour: str) -> Iterator[Requirement]:
    for text in PROJECT["dependencies"]:
        yield Requirement(text)
    for extra in EXTRAS[flavour]:
        for text in PROJECT["optional-dependencies"][extra]:
            yield Requirement(text)


@pytest.mark.parametrize("flavour", EXTRAS)
def test_locks_are_not_older_than_the_project(flavour: str) -> None:
    """Each requirement is in them with a version that fits: else `deploy/image/lock` makes them anew."""
    versions = locked(flavour)
    for requirement in wanted(flavour):
        found = versions.get(canonicalize_name(requirement.name), [])
        specifier: SpecifierSet = requirement.specifier
        assert found, f"{requirement.name} is not in the lock {flavour}"
        assert all(specifier.contains(version) for version in found), f"{requirement} in the lock {flavour}: {found}"


@pytest.mark.parametrize("flavour", [*EXTRAS, "build"])
def test_every_locked_package_has_hashes_and_no_place(flavour: str) -> None:
    text = (IMAGE / "locks" / f"{flavour}.txt").read_text()
    entries = re.split(r"(?m)^(?=[a-z0-9])", text)[1:]
    assert len(entries) > 3
    for entry in entries:
        assert "--hash=sha256:" in entry
    assert "://" not in text
    assert "--index" not in text


def test_the_lock_script_has_the_same_flavours_and_extras() -> None:
    script = (IMAGE / "lock").read_text()
    everywhere = re.search(r'everywhere="(.*)"', script)
    assert everywhere is not None
    assert tuple(everywhere[1].replace("--extra ", "").split()) == EVERYWHERE
    for flavour, extras in EXTRAS.items():
        line = re.search(rf"^\s+{flavour}\) lock {flavour} (.*) ;;$", script, re.M)
        assert line is not None
        assert tuple(re.findall(r"--extra (\S+)", line[1])) == extras[len(EVERYWHERE) :]


def test_the_chart_and_the_runtimes_name_this_version() -> None:
    version = PROJECT["version"]
    assert f"ARG VERSION={version}\n" in CONTAINERFILE
    (chart,) = read(DEPLOY / "chart" / "Chart.yaml")
    assert chart["appVersion"] == version
    (values,) = read(DEPLOY / "chart" / "values.yaml")
    title = re.search(r'org.opencontainers.image.title="(\w+)"', CONTAINERFILE)
    assert title is not None
    assert (values["image"]["repository"], values["image"]["tag"]) == (title[1], "")
    for path in (DEPLOY / "kserve").glob("*.yaml"):
        for manifest in read(path):
            for container in manifest["spec"]["containers"]:
                assert container["image"] == f"{title[1]}:{version}"


def test_the_image_runs_as_no_root_by_its_entry_point() -> None:
    stages = re.split(r"(?m)^FROM ", CONTAINERFILE)
    assert "USER 1000:0" in stages[2]
    assert 'ENTRYPOINT ["/opt/trioton/bin/python", "-P", "-m", "trioton.container"]' in stages[2]
    assert "RUN" not in stages[2], "a base without a shell will do"
    assert stages[-1].startswith("common AS image"), "what is built where no target is named"
    assert "com.amazonaws.sagemaker.capabilities.multi-models" in stages[2]


@pytest.mark.parametrize("name", ["serve", "healthy"])
def test_the_programs_are_python(name: str) -> None:
    text = (IMAGE / name).read_text()
    assert text.startswith("#!/opt/trioton/bin/python -")
    ast.parse(text)


def test_what_the_image_is_built_from_is_there() -> None:
    lines = (IMAGE / "Containerfile.dockerignore").read_text().splitlines()
    for line in lines:
        if line.startswith("!"):
            assert (ROOT / line[1:]).exists(), line
    needed = [*("actors", "backends", "protocol", "repository", "trioton"), "pyproject.toml", "README.md", "LICENSE"]
    assert {f"!{name}" for name in needed} <= set(lines)
    assert Path(ROOT / ".ci" / "commit_hook.py").exists()
