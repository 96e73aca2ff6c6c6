"""What a server's processes hold in memory, read from `/proc`. Beside `peers`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Memory:
    processes: int
    resident: int  # bytes, RSS summed over the processes: a page that two of them share counts twice
    proportional: int  # bytes, PSS summed: a shared page counts once in all


def tree_memory(root: int, proc: Path = PROC) -> Memory:
    """The memory of a process and all its descendants. Processes that end meanwhile count nothing."""
    totals = [sizes for pid in process_tree(root, proc) if (sizes := _sizes(pid, proc)) is not None]
    return Memory(len(totals), sum(rss for rss, _ in totals), sum(pss for _, pss in totals))


def process_memory(pid: int, proc: Path = PROC) -> Memory:
    """The memory of one process without its descendants; none where it has ended."""
    sizes = _sizes(pid, proc)
    return Memory(0, 0, 0) if sizes is None else Memory(1, *sizes)


def process_tree(root: int, proc: Path = PROC) -> list[int]:
    """`root` and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal() and (parent := _parent(folder)) is not None:
            children.setdefault(parent, []).append(int(folder.name))
    tree = [root]
    for pid in tree:  # grows while it is walked
        tree += children.get(pid, [])
    return tree


def _parent(folder: Path) -> int | None:
    try:
        found = re.search(r"^PPid:\s+(\d+)", (folder / "status").read_text(), flags=re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(found[1]) if found else None


def _sizes(pid: int, proc: Path) -> tuple[int, int] | None:
    try:
        text = (proc / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    sizes = {name: int(kib) * 1024 for name, kib in re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, flags=re.MULTILINE)}
    return sizes.get("Rss", 0), sizes.get("Pss", 0)
