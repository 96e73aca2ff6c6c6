"""Finding models and versions in real directories."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import InvalidArgument, NotFound
from repository.layout import (
    ModelDirectory,
    check_model_name,
    find_model,
    find_models,
    first_version_directory,
    select_versions,
    version_directories,
)
from repository.model_config import AllPolicy, LatestPolicy, ModelVersionPolicy, SpecificPolicy


def make_directories(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)


def model_directory(root: Path, *subdirectories: str) -> ModelDirectory:
    """The model `m` in a repository at `root`, with these directories in it."""
    make_directories(root, "m", *(f"m/{name}" for name in subdirectories))
    return ModelDirectory("m", root / "m", root)


def test_every_subdirectory_is_a_model_but_for_hidden_ones(tmp_path: Path) -> None:
    make_directories(tmp_path, "b/1", "a", ".git", "elsewhere/c")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a", target_is_directory=True)
    found = find_models([tmp_path])
    assert list(found.models) == ["a", "b", "elsewhere", "link"]
    assert found.models["a"] == ModelDirectory("a", tmp_path / "a", tmp_path)
    assert found.duplicates == {}


def test_a_model_in_two_repositories_is_in_neither(tmp_path: Path) -> None:
    make_directories(tmp_path, "one/m", "one/a", "two/m", "two/b")
    one, two = tmp_path / "one", tmp_path / "two"
    found = find_models([one, two, one])
    assert sorted(found.models) == ["a", "b"]
    assert found.duplicates == {"m": (ModelDirectory("m", one / "m", one), ModelDirectory("m", two / "m", two))}
    assert find_model([one, two], "m").duplicates == found.duplicates
    assert find_model([one, two], "b").models == {"b": found.models["b"]}


def test_one_repository_given_twice_holds_no_duplicates(tmp_path: Path) -> None:
    make_directories(tmp_path, "m")
    assert list(find_models([tmp_path, tmp_path]).models) == ["m"]


def test_a_missing_repository_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"cannot list directory '.*/nowhere': No such file or directory"):
        find_models([tmp_path / "nowhere"])


def test_a_directory_whose_name_no_answer_could_carry_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/not-utf8-\xff")
    assert find_models([tmp_path]).models == {}
    assert "not printable" in caplog.text


def test_looking_up_what_is_not_there_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    make_directories(tmp_path, ".hidden")
    for name in ("m", "file", ".hidden", "x" * 5000):
        found = find_model([tmp_path], name)
        assert (found.models, found.duplicates) == ({}, {})


@pytest.mark.parametrize("name", ["..", "../m", "a/b", "/etc", "a\0b", ".", "a\\b"])
def test_a_name_that_could_lead_out_of_the_repository_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        find_model([tmp_path], name)
    assert caught.value.message == (
        f"invalid model name '{name}', model name must not contain path traversal characters"
    )


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^Model name cannot be empty. Please enter a valid name to deploy.$"):
        check_model_name("")


def test_ordinary_names_pass() -> None:
    for name in ("m", "identity.python", "a-b_c 1", ".hidden", "...", "a..b"):
        check_model_name(name)


def test_versions_are_the_directories_with_a_plain_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = model_directory(
        tmp_path, "1", "10", "2", "0", "007", "abc", "3b", "-4", "٣", "9" * 30, "warmup", "initial_state", "configs"
    )
    (tmp_path / "m" / "5").touch()
    assert version_directories(directory) == (0, 1, 2, 10)
    warned = sorted(record.getMessage() for record in caplog.records)
    number = "is skipped, its name is no version number"
    assert warned == sorted(
        [
            *(f"model 'm': directory '{name}' {number}" for name in ("abc", "3b", "-4", "٣", "9" * 30)),
            "model 'm': directory '007' is skipped, its name has leading zeros",
        ]
    )


def test_a_model_directory_that_is_gone_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="cannot list directory"):
        version_directories(ModelDirectory("m", tmp_path / "m", tmp_path))


def test_the_first_version_directory_is_first_as_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = model_directory(tmp_path, "9", "10", "000", "a")
    assert first_version_directory(directory) == tmp_path / "m" / "10"
    assert not caplog.records
    assert first_version_directory(model_directory(tmp_path / "other", "warmup")) is None


LATEST_2 = ModelVersionPolicy(latest=LatestPolicy(num_versions=2))
ALL = ModelVersionPolicy(all=AllPolicy())


@pytest.mark.parametrize(
    ("policy", "selected"),
    [
        (None, (10,)),
        (ModelVersionPolicy(), (10,)),
        (LATEST_2, (3, 10)),
        (ModelVersionPolicy(latest=LatestPolicy(num_versions=9)), (1, 3, 10)),
        (ALL, (1, 3, 10)),
        (ModelVersionPolicy(specific=SpecificPolicy((3, 1, 3))), (1, 3)),
        (ModelVersionPolicy(specific=SpecificPolicy((10, 4))), (10,)),
    ],
)
def test_selects(policy: ModelVersionPolicy | None, selected: tuple[int, ...]) -> None:
    assert select_versions(policy, (10, 1, 3), model="m") == selected


@pytest.mark.parametrize(
    ("policy", "available"),
    [
        (None, ()),
        (ALL, ()),
        (ModelVersionPolicy(latest=LatestPolicy()), (1, 2)),
        (ModelVersionPolicy(specific=SpecificPolicy()), (1, 2)),
        (ModelVersionPolicy(specific=SpecificPolicy((3,))), (1, 2)),
    ],
)
def test_selecting_nothing_is_an_error(policy: ModelVersionPolicy | None, available: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        select_versions(policy, available, model="m")
    assert caught.value.message == "at least one version must be available under the version policy of model 'm'"


def test_a_missing_specific_version_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        select_versions(ModelVersionPolicy(specific=SpecificPolicy((1, 4))), (1,), model="m")
    assert [record.getMessage() for record in caplog.records] == [
        "version 4 of model 'm' is in its version policy but not in its directory"
    ]


@settings(deadline=None)
@given(st.sets(st.integers(0, 50), min_size=1), st.integers(1, 60))
def test_latest_selects_the_highest(available: set[int], count: int) -> None:
    policy = ModelVersionPolicy(latest=LatestPolicy(num_versions=count))
    selected = select_versions(policy, available, model="m")
    assert len(selected) == min(count, len(available))
    assert list(selected) == sorted(available)[-count:]
