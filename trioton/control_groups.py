"""Control groups (cgroup v1 and v2): the memory and CPU limits of this process.

Read from /proc/self/cgroup, /proc/self/mountinfo and the mounted hierarchies: the limit of any group from the process's
own up to the mount's root counts. Source: cgroups(7), proc_pid_mountinfo(5), the kernel's pages on both versions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")

_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_MEMORY_USES = ("memory.current", "memory.usage_in_bytes")
# Pages of files, which the kernel drops before it kills; those of version 1 with the groups below.
_CACHES = ("active_file", "inactive_file"), ("total_active_file", "total_inactive_file")
# Version 1 has no word for "none": it is the largest multiple of a page. No machine has a tenth of it.
_UNLIMITED = 2**60
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """One group that has a limit. `available` is what it leaves beyond what is used and cannot be dropped."""

    limit: int
    available: int


@dataclass(frozen=True, slots=True)
class _Mount:
    """A hierarchy, or a part of one below `top`, that is mounted at `point`; `controllers` is None for version 2."""

    top: PurePosixPath
    point: Path
    controllers: frozenset[str] | None


def memory_limits(root: Path = ROOT) -> list[GroupMemory]:
    """The groups of this process that limit its memory."""
    found = [_memory_of(directory) for directory in group_directories("memory", root)]
    return [each for each in found if each is not None]


def cpu_quotas(root: Path = ROOT) -> list[float]:
    """The cores whose time each group of this process may use, of those that have a limit."""
    found = [_quota_of(directory) for directory in group_directories("cpu", root)]
    return [each for each in found if each is not None]


def _memory_of(directory: Path) -> GroupMemory | None:
    limits = [_number(directory / name) for name in _MEMORY_LIMITS]
    statistics = _statistics(directory / "memory.stat")
    # Of version 1, and holds the limits of groups that cannot be seen from here.
    limits.append(statistics.get("hierarchical_memory_limit"))
    limit = min((each for each in limits if each is not None and each < _UNLIMITED), default=None)
    if limit is None:
        return None
    used = next((each for name in _MEMORY_USES if (each := _number(directory / name)) is not None), 0)
    cached = max(sum(statistics.get(name, 0) for name in names) for names in _CACHES)
    return GroupMemory(limit, max(0, limit - max(0, used - cached)))


def _quota_of(directory: Path) -> float | None:
    """Version 2 has quota and period in one file."""
    quota, period = [*_text(directory / "cpu.max").split(), "", ""][:2]
    if not quota:
        quota, period = (_text(directory / f"cpu.cfs_{which}_us").strip() for which in ("quota", "period"))
    if not (quota.isdecimal() and period.isdecimal() and int(period)):  # "max", or -1 in version 1
        return None
    return int(quota) / int(period)


def group_directories(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The directories of the process's groups that may limit what the controller gives, from its own up."""
    paths = _paths(controller, root)
    seen: set[Path] = set()
    for mount in _mounts(root):
        is_second = mount.controllers is None
        path = paths.get(is_second)
        if path is None or not (is_second or controller in (mount.controllers or ())):
            continue
        for directory in _upwards(mount, path):
            if directory not in seen:
                seen.add(directory)
                yield directory


def _paths(controller: str, root: Path) -> dict[bool, PurePosixPath]:
    """The process's group in the hierarchy of version 2 (True), and in that of version 1 with the controller."""
    found: dict[bool, PurePosixPath] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if number == "0" and not controllers:
            found[True] = PurePosixPath(path)
        elif controller in controllers.split(","):
            found[False] = PurePosixPath(path)
    return found


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *_) = before.split(" "), (*after.split(" "), "")
        if len(fields) < 5 or kind not in ("cgroup", "cgroup2"):
            continue
        top, point = (_ESCAPE.sub(lambda match: chr(int(match[1], 8)), text) for text in fields[3:5])
        controllers = frozenset(after.rpartition(" ")[2].split(",")) if kind == "cgroup" else None
        yield _Mount(PurePosixPath(top), root / point.lstrip("/"), controllers)


def _upwards(mount: _Mount, path: PurePosixPath) -> Iterator[Path]:
    """From the group's directory to the mount's. In a container the path may be one that is not to be seen in it, where
    the mount itself is the nearest group."""
    below = path.relative_to(mount.top) if path.is_relative_to(mount.top) else PurePosixPath()
    if ".." in below.parts or not os.path.isdir(mount.point / below):
        below = PurePosixPath()
    for part in (below, *below.parents):
        yield mount.point / part


def _statistics(path: Path) -> dict[str, int]:
    lines = (line.split(" ") for line in _text(path).splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdecimal()}


def _number(path: Path) -> int | None:
    """None where there is no such file, or no number in it ("max")."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):  # no such file, or a path that cannot be one
        return ""
