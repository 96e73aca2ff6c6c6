"""Host policies: what the flag takes, and which cores they come to on a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioton.flags.fields import UsageError, read_arguments, rows
from trioton.host_policies import HostPolicySetting, host_policy_setting, parse_cores, resolve_host_policies
from trioton.settings import Settings

USABLE = frozenset(range(8))


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0", {0}), ("0-3", {0, 1, 2, 3}), ("0-1,5,7-7", {0, 1, 5, 7}), ("0-1\n", {0, 1})],
)
def test_cores(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpu_0", "option format is"),
        ("cpu,cpu-cores", "option format is"),
        (",cpu-cores=1", "option format is"),
        ("cpu,=1", "option format is"),
        ("cpu,speed=1", "unknown setting 'speed' of a host policy; expected numa-node or cpu-cores"),
        ("cpu,cpu-cores=", "expected cores as in 0-3,8"),
        ("cpu,cpu-cores=a-b", "expected cores as in 0-3,8"),
        ("cpu,cpu-cores=1-", None),
        ("cpu,cpu-cores=3-1", "3-1 ends before it begins"),
        ("cpu,cpu-cores=999999999", "expected cores as in 0-3,8"),
        ("cpu,numa-node=-1", "expected the number of a node"),
    ],
)
def test_what_the_flag_does_not_take(text: str, reason: str | None) -> None:
    if reason is None:  # an open end is the core itself
        assert host_policy_setting(text) == HostPolicySetting("cpu", frozenset({1}))
        return
    with pytest.raises(ValueError, match=reason):
        host_policy_setting(text)


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    for number, cores in enumerate(("0-3\n", "4-7\n", "8-11\n")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(cores)
    return tmp_path


def test_policies_by_name(nodes: Path) -> None:
    """Cores go before a node, and what is said last before what was said first."""
    settings = [
        host_policy_setting(text)
        for text in (
            "cpu,cpu-cores=0",
            "cpu,numa-node=1",
            "gpu_0,numa-node=0",
            "gpu_0,numa-node=1",
            "model,cpu-cores=1",
            "model,cpu-cores=2-3",
        )
    ]
    assert resolve_host_policies(settings, nodes=nodes, usable=USABLE) == {
        "cpu": {0},
        "gpu_0": {4, 5, 6, 7},
        "model": {2, 3},
    }
    assert resolve_host_policies([], nodes=nodes, usable=USABLE) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("p,numa-node=7", "host policy 'p': this machine has no NUMA node 7; it has 0, 1, 2"),
        ("p,cpu-cores=6-9", "host policy 'p' names CPU cores 8-9; this process may use 0-7"),
        ("p,numa-node=2", "host policy 'p' names CPU cores 8-11; this process may use 0-7"),
    ],
)
def test_what_this_machine_does_not_have(nodes: Path, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        resolve_host_policies([host_policy_setting(text)], nodes=nodes, usable=USABLE)


def test_a_server_for_another_machine_is_not_started() -> None:
    given = read_arguments(rows(Settings), ["--host-policy=p,cpu-cores=99990"])
    with pytest.raises(UsageError, match="--host-policy: host policy 'p' names CPU cores 99990"):
        Settings(model_repository=(Path("models"),), **given)
