"""What the tests ask the system about processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from protocol.reactor.drivers import the_poller
from tests import descriptors
from tests.marked_processes import is_marked


def open_descriptors() -> set[tuple[int, str]]:
    """Of this process. The poller's own stays until the run ends, and so it is there from the first call."""
    if trio.lowlevel.in_trio_run():
        the_poller()
    return descriptors.open_descriptors()


def children() -> list[int]:
    """The processes that this one has started and not reaped, but for Python's own helper of `multiprocessing`, and for
    servers and emulators that tests share."""
    found = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    return [pid for pid in found if not _is_of_another(pid)]


def _is_of_another(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes() or is_marked(pid)
    except ProcessLookupError:  # it has ended, and waits to be reaped
        return False


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another process; the test's own time limit bounds it."""
    while not condition():  # noqa: ASYNC110 (what another process does sets no event)
        await trio.sleep(0.01)


def shared_memory_files(*pids: int) -> set[Path]:
    """What these processes have open or mapped in /dev/shm."""
    links: set[str] = set()
    for pid in pids:
        for folder in ("fd", "map_files"):
            for link in Path(f"/proc/{pid}/{folder}").glob("*"):
                try:
                    links.add(str(link.readlink()))
                except OSError:  # it is gone
                    continue
    return {Path(name.removesuffix(" (deleted)")) for name in links if name.startswith("/dev/shm/")}
