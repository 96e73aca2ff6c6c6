"""Several repositories: what is found in them, under which names, and as they come and go."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from protocol.errors import AlreadyExists, InvalidArgument, ServerError, Unavailable
from repository.layout import ModelDirectory
from repository.loader import read_config
from repository.repositories import Repositories
from repository.stores.cache import FileCache
from repository.stores.store_repository import StoreRepository, Stores
from repository.stores.urls import parse_store_url


def add(repository: Path, *names: str) -> Path:
    for name in names:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text('backend: "fake"')
    return repository


def places(repositories: Repositories) -> dict[str, str]:
    """Each model that can be served with its directory, as `<repository>/<directory>`."""
    found = repositories.find_models().models
    for identifier, model in found.items():
        assert repositories.find_model(identifier).models == {identifier: model}
    return {identifier: f"{model.repository.name}/{model.path.name}" for identifier, model in found.items()}


def test_they_come_and_go(tmp_path: Path) -> None:
    repositories = Repositories([add(tmp_path / "a", "m")])
    add(tmp_path / "b", "n")
    assert places(repositories) == {"m": "a/m"}
    repositories.register(str(tmp_path / "b"), {})
    assert places(repositories) == {"m": "a/m", "n": "b/n"}
    assert [each.path for each in repositories.registered] == [str(tmp_path / "a"), str(tmp_path / "b")]
    repositories.unregister(str(tmp_path / "a") + "/")
    assert places(repositories) == {"n": "b/n"}
    assert repositories.find_model("m").models == {}


def test_models_under_other_names(tmp_path: Path) -> None:
    """The directory's own name may stand in the configuration, and is free for another."""
    repositories = Repositories([add(tmp_path / "a", "m", "taken")])
    add(tmp_path / "b", "m", "other")
    (tmp_path / "b" / "m" / "config.pbtxt").write_text('name: "m" backend: "fake"')
    repositories.register(str(tmp_path / "b"), {"m": "renamed"})
    assert places(repositories) == {"m": "a/m", "taken": "a/taken", "renamed": "b/m", "other": "b/other"}
    renamed = repositories.find_model("renamed").models["renamed"]
    assert read_config(renamed).name == "renamed"
    (renamed.path / "config.pbtxt").write_text('name: "another" backend: "fake"')
    with pytest.raises(InvalidArgument, match="unexpected directory name 'renamed' for model 'another'"):
        read_config(renamed)
    repositories.unregister(str(tmp_path / "b"))
    repositories.register(str(tmp_path / "b"), {"m": "taken"})
    assert sorted(repositories.find_models().duplicates) == ["taken"]
    assert len(repositories.find_model("taken").duplicates["taken"]) == 2


@pytest.mark.parametrize(
    ("path", "names", "error", "text"),
    [
        ("", {}, InvalidArgument, "failed to register '', repository not found"),
        ("nowhere", {}, InvalidArgument, "failed to register 'nowhere', repository not found"),
        ("b", {"../m": "x"}, InvalidArgument, "invalid model name '../m'"),
        ("b", {"m": ""}, InvalidArgument, "Model name cannot be empty"),
        ("a", {}, AlreadyExists, "model repository 'a' has already been registered"),
        ("./a/../a", {}, AlreadyExists, "has already been registered"),
        (
            "b",
            {"m": "mapped"},
            AlreadyExists,
            "failed to register 'mapped', there is a conflicting mapping for 'mapped'",
        ),
        ("b", {"m": "same", "n": "same"}, AlreadyExists, "conflicting mapping for 'same'"),
    ],
)
def test_what_cannot_be_registered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    names: dict[str, str],
    error: type[ServerError],
    text: str,
) -> None:
    """Nothing is changed by it."""
    monkeypatch.chdir(tmp_path)
    for each in "abc":
        add(tmp_path / each, "m")
    repositories = Repositories([Path("a")])
    repositories.register("c", {"m": "mapped"})
    with pytest.raises(error) as raised:
        repositories.register(path, names)
    assert text in raised.value.message
    assert places(repositories) == {"m": "a/m", "mapped": "c/m"}


def test_what_was_never_registered_cannot_be_dropped(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^failed to unregister '/nowhere', repository not found$"):
        Repositories([tmp_path]).unregister("/nowhere")


def test_namespaces_tell_equal_names_apart(tmp_path: Path) -> None:
    a, b = add(tmp_path / "a", "m", "only"), add(tmp_path / "b", "m")
    plain = Repositories([a, b])
    assert places(plain) == {"only": "a/only"}
    assert list(plain.find_models().duplicates) == ["m"]
    spaced = Repositories([a, b], is_namespaced=True)
    assert places(spaced) == {f"{a}::m": "a/m", f"{a}::only": "a/only", f"{b}::m": "b/m"}
    assert spaced.find_models().duplicates == {}
    assert len(spaced.find_model("m").duplicates["m"]) == 2
    assert list(spaced.find_model("only").models) == [f"{a}::only"]
    assert spaced.find_model("/elsewhere::m").models == {}


@pytest.mark.parametrize(
    ("name", "namespace", "resolved"),
    [
        ("m", "a", "a::m"),
        ("m", "b", "b::m"),
        ("m", "", "m"),
        ("m", "elsewhere", "m"),
        ("only", "b", "a::only"),
        ("only", "", "a::only"),
        ("absent", "a", "absent"),
        ("b::m", "a", "b::m"),
    ],
)
def test_whom_a_name_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, namespace: str, resolved: str
) -> None:
    """One of its own namespace before others, another only where it is the only one."""
    monkeypatch.chdir(tmp_path)
    add(tmp_path / "a", "m", "only")
    add(tmp_path / "b", "m")
    assert Repositories([Path("a"), Path("b")], is_namespaced=True).resolve(name, namespace) == resolved
    assert Repositories([Path("a"), Path("b")]).resolve(name, namespace) == name


def test_an_empty_folder_stands_in_nobodys_way(tmp_path: Path) -> None:
    a, b = add(tmp_path / "a", "m"), tmp_path / "b"
    (b / "m" / "1").mkdir(parents=True)
    repositories = Repositories([a, b])
    assert places(repositories) == {"m": "a/m"}
    (b / "m" / "config.pbtxt").write_text("")
    assert list(repositories.find_model("m").duplicates) == ["m"]
    assert list(repositories.find_models().duplicates) == ["m"]


def test_a_model_by_itself_has_the_namespace_of_its_folder(tmp_path: Path) -> None:
    model = ModelDirectory("m", add(tmp_path / "a", "m") / "m", tmp_path / "a")
    repositories = Repositories([model], is_namespaced=True)
    assert places(repositories) == {f"{tmp_path / 'a'}::m": "a/m"}
    assert [each.path for each in repositories.registered] == [str(tmp_path / "a" / "m")]


def test_one_that_cannot_be_listed_hides_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What lies in the others is found, and the log names the one."""
    repositories = Repositories([tmp_path / "absent", add(tmp_path / "a", "m")])
    assert places(repositories) == {"m": "a/m"}
    assert f"the models of model repository '{tmp_path / 'absent'}' are not known: cannot list" in caplog.text
    add(tmp_path / "absent", "n")
    assert places(repositories) == {"m": "a/m", "n": "absent/n"}


def test_a_model_is_looked_for_in_every_repository_before_one_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that cannot be reached may have it only where no other repository has."""

    def fail(self: StoreRepository, name: str) -> None:
        raise Unavailable("cannot list 'models/': the store did not answer")

    monkeypatch.setattr(StoreRepository, "model", fail)
    stores = Stores({}, FileCache(tmp_path / "cache", 1))
    unreachable = stores.repository(parse_store_url("s3://bucket/models"))
    repositories = Repositories([unreachable, add(tmp_path / "a", "m")])
    assert list(repositories.find_model("m").models) == ["m"]
    with pytest.raises(ServerError, match="cannot list"):
        repositories.find_model("n")


def test_a_look_costs_each_model_the_same_few_calls_of_the_file_system(tmp_path: Path) -> None:
    """Of which a poll makes thousands where there are a thousand models."""

    def calls(models: int) -> Counter[str]:
        for index in range(models):
            version = tmp_path / f"m{index}" / "1"
            version.mkdir(parents=True, exist_ok=True)
            for file in (version / "model.py", version.parent / "config.pbtxt"):
                file.touch()
        repositories = Repositories([tmp_path])
        counted: Counter[str] = Counter()

        def count(_frame: object, event: str, called: object) -> None:
            name = getattr(called, "__name__", "")
            if event == "c_call" and name in ("stat", "lstat", "scandir", "listdir", "readlink"):
                counted[name] += 1

        sys.setprofile(count)
        try:
            assert len(repositories.look({})) == models
        finally:
            sys.setprofile(None)
        return counted

    few, many = calls(10), calls(20)
    each = {name: (many[name] - few[name]) / 10 for name in many}
    # Of its folder: whether it is one, what kind of model it is (three files), its own number; of a folder, two files.
    assert each["stat"] <= 8
    assert each["scandir"] == 2
    assert not {"lstat", "readlink"} & {*each}
