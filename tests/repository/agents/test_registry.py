"""Finding repository agents by name: our own, those of other packages, and what goes wrong with these."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from protocol.errors import InvalidArgument, ServerError, Unavailable
from repository.agents import registry
from repository.agents.checksum import ChecksumAgent
from repository.agents.interface import RepositoryAgent
from repository.agents.registry import AgentRegistry


class Other(RepositoryAgent):
    pass


def offer(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Let these be the entry points of the installed packages."""
    points = EntryPoints(EntryPoint(name.rstrip("_"), value, registry.GROUP) for name, value in values.items())
    monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))


def test_our_own_needs_no_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    assert AgentRegistry().find("checksum", model="m") is ChecksumAgent


def test_another_package_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, other=f"{__name__}:Other")
    assert AgentRegistry().find("other", model="m") is Other


def test_an_extra_one_wins() -> None:
    assert AgentRegistry({"checksum": Other}).find("checksum", model="m") is Other


@pytest.mark.parametrize(
    ("offered", "kind", "text"),
    [
        (
            {"b": "a:B"},
            InvalidArgument,
            "model 'm': repository agent 'a' is not installed; those that are: b, checksum",
        ),
        (
            {"a": "a:B", "a_": "c:D"},
            InvalidArgument,
            "repository agent 'a' is offered more than once: a:B, c:D; keep one",
        ),
        (
            {"a": "no_such_module_here:B"},
            Unavailable,
            "failed when it was imported: ModuleNotFoundError: No module named",
        ),
        (
            {"a": "builtins:int"},
            Unavailable,
            "is no subclass of trioton.repository_agents.RepositoryAgent",
        ),
    ],
)
def test_what_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, offered: dict[str, str], kind: type[ServerError], text: str
) -> None:
    offer(monkeypatch, **offered)
    with pytest.raises(kind, match=text):
        AgentRegistry().find("a", model="m")
