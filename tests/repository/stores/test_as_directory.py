"""A repository in a store is the same as one on disk with the same files, whatever they are."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from repository.fingerprint import Fingerprint, fingerprint
from repository.layout import ModelDirectory, find_model, find_models, first_version_directory, version_directories
from repository.stores.cache import FileCache
from repository.stores.client import Bucket
from repository.stores.download import LocalCopy
from repository.stores.store_repository import StoreRepository
from repository.stores.urls import parse_store_url

_MODELS = st.sampled_from(["a", "b c", ".hidden", "ü", "1"])
_FOLDERS = st.sampled_from(["1", "10", "2", "02", "x", "configs", "warmup", "__pycache__", ".git", "a~", "7/deep/er"])
_FILES = st.sampled_from(["config.pbtxt", "model.onnx", "ü %20+&?", ".swp", "b~", "m.pyc"])
_PATHS = st.one_of(
    st.tuples(_MODELS, _FILES), st.tuples(_MODELS, _FOLDERS, _FILES), st.tuples(_FILES), st.tuples(_MODELS, _FOLDERS)
).map("/".join)


def is_tree(files: Mapping[str, bytes]) -> bool:
    """Whether no file is another's directory."""
    return not any(other.startswith(f"{path}/") for path in files for other in files)


_REPOSITORIES = st.dictionaries(_PATHS, st.binary(min_size=1, max_size=40), max_size=12).filter(is_tree)


def remote(files: Mapping[str, bytes], root: Path) -> StoreRepository:
    """The files in a store in memory, among others."""
    bucket = Bucket(parse_store_url("s3://bucket/some/models"), {})
    bucket._store = MemoryStore()
    for path, content in {
        **{f"some/models/{path}": each for path, each in files.items()},
        "some/models2/a/1/x": b"no",
    }.items():
        bucket._store.put(path, content)
    return StoreRepository(bucket, FileCache(root / "cache", 10**9))


def shape(found: Fingerprint) -> set[tuple[str, int]]:
    return {(path, size) for path, _, size in found}


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def downloaded(model: ModelDirectory) -> LocalCopy:
    assert model.remote is not None
    copy = LocalCopy(model.name, model.remote)
    for file in copy.missing:
        for part in file.parts:
            copy.fetch(part, lambda: None)
        copy.finish(file)
    return copy


@pytest.mark.slow
@given(_REPOSITORIES)
@settings(max_examples=60)
def test_the_same_models_versions_and_files(files: Mapping[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        local = root / "models"
        local.mkdir()
        for path, content in files.items():
            (local / path).parent.mkdir(parents=True, exist_ok=True)
            (local / path).write_bytes(content)
        stored = remote(files, root)
        ours, theirs = find_models((local,)).models, find_models((stored,)).models
        assert ours.keys() == theirs.keys()
        for name, model in theirs.items():
            assert find_model((stored,), name).models.keys() == {name}
            assert version_directories(model) == version_directories(ours[name])
            first, expected = first_version_directory(model), first_version_directory(ours[name])
            assert (first and first.name) == (expected and expected.name)
            for is_watched in (False, True):
                seen = shape(fingerprint(model, is_watched=is_watched))
                assert seen == shape(fingerprint(ours[name], is_watched=is_watched))
            for is_cached in (False, True):
                copy = downloaded(model)
                assert bool(copy.missing) is not is_cached
                assert contents(copy.directory.path) == contents(ours[name].path)
                copy.release()


@given(_REPOSITORIES, st.data())
@settings(max_examples=40)
def test_an_edit_is_seen_in_its_model_alone(files: Mapping[str, bytes], data: st.DataObject) -> None:
    """And nothing where nothing was changed."""
    with tempfile.TemporaryDirectory() as temporary:
        stored = remote(files, Path(temporary))
        before = {name: fingerprint(model) for name, model in find_models((stored,)).models.items()}
        assert before == {name: fingerprint(model) for name, model in find_models((stored,)).models.items()}
        if not before:
            return
        edited = data.draw(st.sampled_from(sorted(before)))
        stored._bucket._store.put(f"some/models/{edited}/1/model.new", b"new")
        after = {name: fingerprint(model) for name, model in find_models((stored,)).models.items()}
        assert {name for name in before if after[name] != before[name]} == {edited}
