"""Memory of a process tree, read from a `/proc` of files, and once from the real one."""

from __future__ import annotations

import os
from pathlib import Path

from tests.bench.memory import Memory, process_tree, tree_memory

KIB = 1024


def add_process(proc: Path, pid: int, parent: int, *, rss: int = 0, pss: int = 0) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "status").write_text(f"Name:\tpython3\nPid:\t{pid}\nPPid:\t{parent}\n")
    (folder / "smaps_rollup").write_text(
        f"0-f ---p 0 00:00 0 [rollup]\nRss:   {rss} kB\nPss:  {pss} kB\nPss_Anon: 9 kB\n"
    )


def test_a_tree_is_the_process_and_all_its_descendants(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1), (101, 13)):
        add_process(tmp_path, pid, parent)
    (tmp_path / "meminfo").write_text("not a process")
    assert sorted(process_tree(10, tmp_path)) == [10, 11, 12]


def test_memory_is_summed_over_the_tree(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1, rss=300, pss=200)
    add_process(tmp_path, 11, 10, rss=100, pss=50)
    add_process(tmp_path, 12, 1, rss=999, pss=999)
    assert tree_memory(10, tmp_path) == Memory(processes=2, resident=400 * KIB, proportional=250 * KIB)


def test_a_process_that_ended_meanwhile_counts_nothing(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1, rss=300, pss=200)
    add_process(tmp_path, 11, 10)
    (tmp_path / "11" / "smaps_rollup").unlink()
    (tmp_path / "12").mkdir()
    assert tree_memory(10, tmp_path) == Memory(processes=1, resident=300 * KIB, proportional=200 * KIB)


def test_this_very_process_holds_memory() -> None:
    memory = tree_memory(os.getpid())
    assert memory.processes >= 1
    assert 0 < memory.proportional <= memory.resident
