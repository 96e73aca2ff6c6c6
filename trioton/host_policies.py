"""Host policies (`--host-policy`): CPU cores and NUMA nodes that model instances are bound to. `--host-policy`, read
and looked up on this machine.

Source: Triton's host policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backends.affinity import usable_cores

NODES = Path("/sys/devices/system/node")

_FORMAT = "--host-policy option format is '<policy name>,<setting>=<value>'"


@dataclass(frozen=True, slots=True)
class HostPolicySetting:
    """One `--host-policy`. `cores` are those of `cpu-cores`; `numa_node` is None where that is what was set."""

    policy: str
    cores: frozenset[int] = frozenset()
    numa_node: int | None = None


def host_policy_setting(text: str) -> HostPolicySetting:
    policy, comma, rest = text.partition(",")
    setting, equals, value = rest.partition("=")
    if not policy or not comma or not setting or not equals:
        raise ValueError(_FORMAT)
    match setting:
        case "cpu-cores":
            return HostPolicySetting(policy, cores=parse_cores(value))
        case "numa-node":
            if not (value.isascii() and value.isdigit()):
                raise ValueError("numa-node: expected the number of a node")
            return HostPolicySetting(policy, numa_node=int(value))
    raise ValueError(f"unknown setting '{setting}' of a host policy; expected numa-node or cpu-cores")


def parse_cores(text: str) -> frozenset[int]:
    """As in `0-3,8`. Raises ValueError."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers = [first, last or first]
        if not all(number.isascii() and number.isdigit() and len(number) <= 5 for number in numbers):
            raise ValueError("cpu-cores: expected cores as in 0-3,8")
        low, high = map(int, numbers)
        if high < low:
            raise ValueError(f"cpu-cores: {part} ends before it begins")
        cores.update(range(low, high + 1))
    return frozenset(cores)


def resolve_host_policies(
    settings: Sequence[HostPolicySetting], *, nodes: Path = NODES, usable: frozenset[int] | None = None
) -> Mapping[str, frozenset[int]]:
    """The cores of each policy, by its name. `cpu-cores` goes before `numa-node`, and of two of a kind the last counts.

    Raises:
        ValueError: this machine has no such node, or the policy names cores that this process may not use.
    """
    usable = usable_cores() if usable is None else usable
    by_cores = {each.policy: each.cores for each in settings if each.cores}
    by_node = {each.policy: _cores_of_node(each.policy, each.numa_node, nodes) for each in settings if not each.cores}
    policies = {**by_node, **by_cores}
    for name, cores in policies.items():
        if missing := cores - usable:
            raise ValueError(
                f"host policy '{name}' names CPU cores {_text(missing)}; this process may use {_text(usable) or 'none'}"
            )
    return policies


def _cores_of_node(policy: str, node: int | None, nodes: Path) -> frozenset[int]:
    try:
        return parse_cores((nodes / f"node{node}" / "cpulist").read_text())
    except OSError:
        known = sorted(path.name.removeprefix("node") for path in nodes.glob("node[0-9]*"))
        raise ValueError(
            f"host policy '{policy}': this machine has no NUMA node {node}; it has {', '.join(known) or 'none'}"
        ) from None


def _text(cores: frozenset[int]) -> str:
    """As in `0-3,8`."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and parts[-1][-1] == core - 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
