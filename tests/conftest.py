"""For every test: hypothesis judges answers, never the time they take, and collections of garbage do not look at the
tests themselves. And object stores, for those who ask.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.emulators import KINDS, GoogleStore, Store, azure_store, azurite, gcs, gs_store, moto, s3_store
from tests.fake_cupy import cupy_runtime

__all__ = ["cupy_runtime"]  # a fixture of all tests

settings.register_profile("trioton", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("trioton"), max_examples=10)
settings.load_profile("trioton")

_bucket_numbers = itertools.count()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs an object store starts a process for it."""
    for item in items:
        if "new_store" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Many thousand tests and their modules are a million objects, which a collection takes half a second to look at:
    Python's own do it again and again, and so do tests that wait for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that the processes of a parallel run have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def moto_address() -> Iterator[str]:
    with moto() as address:
        yield address


@pytest.fixture(scope="session")
def gcs_addresses() -> Iterator[tuple[str, str]]:
    with gcs() as addresses:
        yield addresses


@pytest.fixture(scope="session")
def azurite_address() -> Iterator[str]:
    with azurite() as address:
        yield address


@pytest.fixture
def new_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Store]:
    """Makes a new bucket in a kind of store, and sets the environment for it."""

    def make(kind: str) -> Store:
        name = f"bucket{next(_bucket_numbers)}"
        match kind:
            case "s3":
                store = s3_store(request.getfixturevalue("moto_address"), name)
            case "gs":
                store = gs_store(request.getfixturevalue("gcs_addresses"), name, tmp_path_factory.mktemp("credentials"))
            case _:
                store = azure_store(request.getfixturevalue("azurite_address"), name)
        for variable, value in store.environment.items():
            monkeypatch.setenv(variable, value)
        return store

    return make


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, new_store: Callable[[str], Store]) -> Store:
    """A new bucket, in each kind of store."""
    return new_store(request.param)


@pytest.fixture
def google(new_store: Callable[[str], Store]) -> GoogleStore:
    made = new_store("gs")
    assert isinstance(made, GoogleStore)
    return made


@pytest.fixture
def s3(new_store: Callable[[str], Store]) -> Store:
    return new_store("s3")
