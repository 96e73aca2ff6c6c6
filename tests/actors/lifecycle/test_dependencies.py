"""Which models need which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from actors.lifecycle.dependencies import EnsembleDependencies, composing_models, find_cycle, load_levels
from actors.lifecycle.table import ModelState, VersionEntry
from tests.actors.ensemble.ensembles import ensemble, ensemble_config, model_config, step, toy


def test_the_composing_models_of_an_ensemble_are_named_once() -> None:
    config = ensemble_config(step("b", "I=IN", "O=A"), step("a", "I=A", "O=B"), step("b", "I=B", "O=OUT"))
    assert composing_models(config) == ("b", "a")
    assert composing_models(model_config("m")) == ()


@pytest.mark.parametrize(
    ("needs", "cycle"),
    [
        ({}, []),
        ({"e": ["a", "b"], "a": ["b"], "b": []}, []),
        ({"e": ["e"]}, ["e", "e"]),
        ({"e": ["a"], "a": ["b"], "b": ["e"]}, ["e", "a", "b", "e"]),
        ({"e": ["x", "a"], "a": ["b"], "b": ["a"]}, ["a", "b", "a"]),
    ],
)
def test_cycles(needs: Mapping[str, Sequence[str]], cycle: list[str]) -> None:
    assert find_cycle("e", needs) == cycle


@pytest.mark.parametrize(
    ("names", "needs", "levels"),
    [
        ("", {}, []),
        ("ab", {}, ["ab"]),
        ("eab", {"e": "ab"}, ["ab", "e"]),
        ("eafb", {"e": "a", "f": "eb"}, ["ab", "e", "f"]),
        ("ea", {"e": "x"}, ["ea"]),  # what is not to be loaded now is not waited for
        ("efag", {"e": "f", "f": "e", "g": "e"}, ["a", "efg"]),
    ],
)
def test_levels(names: str, needs: Mapping[str, str], levels: list[str]) -> None:
    assert load_levels(names, {name: list(needed) for name, needed in needs.items()}) == [list(each) for each in levels]


def test_what_a_running_or_loading_ensemble_needs_is_needed() -> None:
    dependencies = EnsembleDependencies()
    model = ensemble(ensemble_config(step("a", "I=IN", "O=OUT")), toy("a"))
    version = VersionEntry(1, model, needs=composing_models(model.config))
    assert not dependencies.is_needed("a")
    dependencies.entered(version)
    assert dependencies.is_needed("a")
    assert not dependencies.is_needed("e")
    assert dependencies.draining() == []
    version.state = ModelState.UNLOADING
    assert dependencies.draining() == [version]
    dependencies.left(version)
    assert not dependencies.is_needed("a")
    with dependencies.wanted(["a"]), dependencies.wanted(["a"]):
        assert dependencies.is_needed("a")
    assert not dependencies.is_needed("a")


def test_a_model_that_is_no_ensemble_needs_nothing() -> None:
    dependencies = EnsembleDependencies()
    dependencies.entered(VersionEntry(1, None))
    assert dependencies.draining() == []


def test_levels_of_many_models_are_found_by_look_ups() -> None:
    """Not by comparing each with each."""

    class Name(str):
        compared = 0
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = [Name(f"model_{index}") for index in range(300)]
    assert load_levels(names, {}) == [names]
    assert Name.compared < 10 * len(names)
