"""The state file: whole at any time, one process's at a time, and of one run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from protocol.jobs.source import Position
from trioton.batch.caution import Caution
from trioton.batch.state import Ends, Identity, State, StateFile, UnusableState, check_identity

IDENTITY = Identity("/in.jsonl", "/out.jsonl", "jsonl", "m", -1, "1/1", None)
STATE = State(
    IDENTITY, Position(7, "in.jsonl", "9-1", 120), Ends(900, 20), 7, 1, 2.5, Caution(20, 1, 15, 0), is_running=True
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "out.jsonl.state")
    assert file.read() is None
    file.write(STATE)
    assert file.read() == STATE
    file.write(msgspec.structs.replace(STATE, done=8))
    found = file.read()
    assert found is not None
    assert found.done == 8
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl.state"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"identity": {}}', b"\xff"])
def test_what_is_no_state_is_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "state").write_bytes(data)
    with pytest.raises(UnusableState, match=r"is not the state of a run .*--restart begins anew"):
        StateFile(tmp_path / "state").read()


def test_another_release_s_state_is_told(tmp_path: Path) -> None:
    StateFile(tmp_path / "state").write(msgspec.structs.replace(STATE, form=99))
    with pytest.raises(UnusableState, match="another release"):
        StateFile(tmp_path / "state").read()


def test_one_has_it_at_a_time(tmp_path: Path) -> None:
    first, second = StateFile(tmp_path / "state"), StateFile(tmp_path / "state")
    with first.locked(), pytest.raises(UnusableState, match="one run at a time"), second.locked():
        raise AssertionError("both have it")
    with second.locked():
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), [("model", "n"), ("version", 2), ("shard", "2/3"), ("limit", 10)])
def test_another_run_s_state_is_told(name: str, value: object) -> None:
    check_identity(STATE, IDENTITY)
    with pytest.raises(UnusableState, match=f"had another {name}, "):
        check_identity(STATE, msgspec.structs.replace(IDENTITY, **{name: value}))
