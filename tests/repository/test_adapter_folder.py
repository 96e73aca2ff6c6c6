"""Paths that clients give for adapters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.errors import InvalidArgument, NotFound
from repository.adapter_folder import adapter_folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model `m` with version 1, a folder `allowed`, and a folder `secret`; each with an adapter `a`."""
    for folder in ("m/1/a", "m/shared/a", "allowed/a", "secret/a"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "adapter_config.json").write_text("{}")
    return tmp_path


def found(place: Path, path: str) -> Path:
    return adapter_folder(path, place / "m" / "1", place / "m", [place / "nowhere", place / "allowed"])


def test_what_is_allowed(place: Path) -> None:
    assert found(place, "a") == place / "m/1/a"
    assert found(place, "../shared/a") == place / "m/shared/a"
    assert found(place, str(place / "allowed" / "a")) == place / "allowed/a"
    assert found(place, str(place / "allowed" / "x" / ".." / "a")) == place / "allowed/a"


@pytest.mark.parametrize(
    "path",
    ["../../secret/a", "../../allowed/a", "a/../../../secret/a", "{}/secret/a", "{}/allowed/../secret/a", "/etc"],
)
def test_what_leads_out(place: Path, path: str) -> None:
    with pytest.raises(InvalidArgument, match="must be inside"):
        found(place, path.format(place))


def test_nothing_is_told_of_what_lies_outside(place: Path) -> None:
    """Whether it is there or not, the answer is the same."""
    texts = set()
    for name in ("a", "b"):
        with pytest.raises(InvalidArgument) as caught:
            found(place, f"{place}/secret/{name}")
        texts.add(caught.value.message.replace(f"secret/{name}", ""))
    assert len(texts) == 1


def test_links(place: Path) -> None:
    (place / "allowed" / "inside").symlink_to(place / "allowed" / "a")
    assert found(place, str(place / "allowed" / "inside")) == place / "allowed/a"
    (place / "allowed" / "outside").symlink_to(place / "secret" / "a")
    with pytest.raises(InvalidArgument, match="must be inside"):
        found(place, str(place / "allowed" / "outside"))
    (place / "allowed" / "a" / "adapter_model.safetensors").symlink_to(place / "secret" / "a" / "adapter_config.json")
    with pytest.raises(InvalidArgument, match=r"its file 'adapter_model.safetensors' leads out"):
        found(place, str(place / "allowed" / "a"))
    (place / "allowed" / "loop").symlink_to(place / "allowed" / "loop")
    with pytest.raises((InvalidArgument, NotFound)):
        found(place, str(place / "allowed" / "loop"))


def test_an_allowed_folder_and_a_version_may_be_links(place: Path) -> None:
    (place / "link").symlink_to(place / "secret")
    assert adapter_folder(f"{place}/link/a", place / "m/1", place / "m", [place / "link"]) == place / "secret/a"
    (place / "m" / "2").symlink_to(place / "secret")
    assert adapter_folder("a", place / "m/2", place / "m", []) == place / "secret/a"


def test_what_is_no_adapter(place: Path) -> None:
    for path in ("nowhere", "a/adapter_config.json"):
        with pytest.raises(NotFound, match="No adapter found for"):
            found(place, path)
    for path in ("", "a\0b", "x" * 5000, "x" * 300 + "/" + "y" * 300):
        with pytest.raises((InvalidArgument, NotFound)):
            found(place, path)
    os.mkfifo(place / "m" / "1" / "a" / "adapter_model.safetensors")
    with pytest.raises(InvalidArgument, match="neither a file nor a folder"):
        found(place, "a")


def test_a_folder_of_anything(place: Path) -> None:
    for number in range(300):
        (place / "allowed" / "a" / str(number)).touch()
    with pytest.raises(InvalidArgument, match="more than 256 files"):
        found(place, str(place / "allowed" / "a"))
