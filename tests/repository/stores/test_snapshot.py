"""Which models a listing shows, and what is in them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from protocol.errors import InvalidArgument
from repository.fingerprint import fingerprint
from repository.layout import (
    ModelDirectory,
    find_model,
    find_models,
    first_version_directory,
    version_directories,
)
from repository.stores.cache import FileCache
from repository.stores.client import Bucket, StoredObject
from repository.stores.snapshot import Snapshot, models_in
from repository.stores.store_repository import StoreRepository
from repository.stores.urls import parse_store_url
from tests.emulators import Store

URL = "s3://bucket/models"


def listed(keys: Mapping[str, int], url: str = URL) -> dict[str, Snapshot]:
    """The models of a listing with objects of these sizes."""
    bucket = Bucket(parse_store_url(url), {})
    objects = [StoredObject(key, size, f'"{key}"', 1) for key, size in keys.items()]
    return models_in(url, bucket, FileCache(Path("unused"), 0), objects)


def test_models_are_what_lies_below_the_repository() -> None:
    """Files of the repository itself are no models."""
    found = listed(
        {"models/a/1/model.onnx": 5, "models/a/config.pbtxt": 3, "models/b/1/model.py": 1, "models/README": 9}
    )
    assert found.keys() == {"a", "b"}
    assert (found["a"].url, set(found["a"].files)) == (f"{URL}/a", {"1/model.onnx", "config.pbtxt"})


def test_a_repository_may_be_the_whole_bucket() -> None:
    assert set(listed({"a/1/model.onnx": 5, "top": 1}, "s3://bucket")["a"].files) == {"1/model.onnx"}


def test_folders_of_their_own() -> None:
    """Consoles make empty objects for them; a model of nothing but a configuration has its version by one."""
    found = listed(
        {"models/e/1": 0, "models/e/config.pbtxt": 4, "models/m/1": 0, "models/m/1/a/b": 1, "models/m/1/a": 0}
    )
    assert (list(found["e"].files), sorted(found["e"].folders)) == (["config.pbtxt"], ["1"])
    assert (list(found["m"].files), sorted(found["m"].folders)) == (["1/a/b"], ["1", "1/a"])
    assert found["e"].subdirectories() == found["m"].subdirectories() == {"1"}


def test_a_file_and_a_directory_of_the_same_name() -> None:
    assert listed({"models/m/1": 5, "models/m/1/a": 1})["m"].conflicts == ("1",)


def test_the_fingerprint_is_that_of_the_listing() -> None:
    """The same for the same ETags; what is no part of the model is left out."""
    files = {"models/m/1/model.onnx": 5, "models/m/config.pbtxt": 4}

    def seen(more: Mapping[str, int], *, is_watched: bool = False) -> object:
        return fingerprint(
            ModelDirectory("m", Path("m"), Path(), remote=listed({**files, **more})["m"]), is_watched=is_watched
        )

    assert seen({}) == seen({}) == seen({"models/m/1/__pycache__/x.pyc": 1, "models/n/x": 1})
    assert seen({"models/m/1/new": 1}) != seen({}) != seen({"models/m/config.pbtxt": 5})
    assert seen({"models/m/.swp": 1}) != seen({})
    assert seen({"models/m/.swp": 1}, is_watched=True) == seen({}, is_watched=True)


def test_the_layout_is_read_from_the_listing(store: Store, tmp_path: Path) -> None:
    """As that of a directory: names, versions, duplicates."""
    for key in (
        "models/a/2/f",
        "models/a/10/f",
        "models/a/01/f",
        "models/a/configs/x",
        "models/.git/1/f",
        "models/b/1/f",
    ):
        store.put(key, b"content")
    remote = StoreRepository(Bucket(parse_store_url(f"{store.url}/models"), os.environ), FileCache(tmp_path, 0))
    found = find_models((remote, remote)).models
    assert found.keys() == {"a", "b"}
    assert version_directories(found["a"]) == (2, 10)
    assert first_version_directory(found["a"]) == found["a"].path / "10"
    assert find_model((remote,), "a").models == {"a": found["a"]}
    assert find_model((remote,), "absent") == find_model((remote,), ".git") == find_models(())
    with pytest.raises(InvalidArgument):
        find_model((remote,), "a/2")
    (tmp_path / "local" / "a").mkdir(parents=True)
    assert find_models((tmp_path / "local", remote)).duplicates.keys() == {"a"}
    before = fingerprint(found["a"])
    assert before == fingerprint(find_models((remote,)).models["a"])
    store.put("models/a/2/f", b"changed")
    assert before != fingerprint(find_models((remote,)).models["a"])
