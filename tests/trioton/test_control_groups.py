"""Limits of control groups, in file trees as systems have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trioton.control_groups import GroupMemory, cpu_quotas, memory_limits

NO_LIMIT = "9223372036854771712"


@dataclass(frozen=True)
class System:
    """`groups` are files below the root, by their paths; `memory` and `cores` what is to be found."""

    name: str
    cgroup: str
    mounts: str
    groups: Mapping[str, str]
    memory: list[GroupMemory] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)


V2_MOUNT = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot"
V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:10 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,nosuid shared:11 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,nosuid shared:12 - cgroup2 cgroup2 rw"""

SYSTEMS = [
    System(
        "a unit of systemd, version 2",
        "0::/system.slice/trioton.service",
        f"22 27 0:20 / /proc rw - proc proc rw\n{V2_MOUNT}",
        {
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/system.slice/memory.max": "max",
            "sys/fs/cgroup/system.slice/memory.high": "1000000",
            "sys/fs/cgroup/system.slice/memory.current": "300000",
            "sys/fs/cgroup/system.slice/memory.stat": "anon 1\nfile 120000\ninactive_file 70000\nactive_file 30000",
            "sys/fs/cgroup/system.slice/cpu.max": "max 100000",
            "sys/fs/cgroup/system.slice/trioton.service/memory.max": "700000",
            "sys/fs/cgroup/system.slice/trioton.service/memory.high": "max",
            "sys/fs/cgroup/system.slice/trioton.service/memory.current": "800000",
            "sys/fs/cgroup/system.slice/trioton.service/cpu.max": "150000 100000",
            "sys/fs/cgroup/other.slice/memory.max": "1",
        },
        [GroupMemory(700_000, 0), GroupMemory(1_000_000, 800_000)],
        [1.5],
    ),
    System(
        "a job of Slurm, version 1",
        "11:memory:/slurm/uid_1000/job_7/step_0\n4:cpu,cpuacct:/slurm/uid_1000/job_7\n1:name=systemd:/x\n0::/",
        V1_MOUNTS,
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT,
            "sys/fs/cgroup/memory/slurm/uid_1000/memory.limit_in_bytes": NO_LIMIT,
            "sys/fs/cgroup/memory/slurm/uid_1000/job_7/memory.limit_in_bytes": "500000",
            "sys/fs/cgroup/memory/slurm/uid_1000/job_7/memory.usage_in_bytes": "200000",
            "sys/fs/cgroup/memory/slurm/uid_1000/job_7/memory.stat": (
                "inactive_file 1\ntotal_inactive_file 60000\ntotal_active_file 40000\nhierarchical_memory_limit 500000"
            ),
            "sys/fs/cgroup/memory/slurm/uid_1000/job_7/step_0/memory.limit_in_bytes": NO_LIMIT,
            "sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_7/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_7/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
        [GroupMemory(500_000, 400_000)],
        [2.0],
    ),
    System(
        "a container with a namespace of its own, version 2",
        "0::/",
        "1 2 0:3 / /sys/fs/cgroup ro - cgroup2 cgroup rw",
        {"sys/fs/cgroup/memory.max": "512000", "sys/fs/cgroup/cpu.max": "50000 100000"},
        [GroupMemory(512_000, 512_000)],
        [0.5],
    ),
    System(
        "a container without one: the mount's root is its group, version 1",
        "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/system.slice/containerd.service",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "36 31 0:33 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct",
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT,
            # Of a group above it that is not mounted here.
            "sys/fs/cgroup/memory/memory.stat": "hierarchical_memory_limit 400000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "25000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
        [GroupMemory(400_000, 400_000)],
        [0.25],
    ),
    System(
        "a group inside such a container",
        "0::/docker/abc/inner",
        "35 31 0:32 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw",
        {"sys/fs/cgroup/memory.max": "900000", "sys/fs/cgroup/inner/memory.max": "800000"},
        [GroupMemory(800_000, 800_000), GroupMemory(900_000, 900_000)],
    ),
    System(
        "a process from outside of its namespace, a mount that does not show its group, a place with a space",
        "0::/../../other",
        r"35 31 0:32 / /mnt/control\040groups rw - cgroup2 cgroup2 rw",
        {"mnt/control groups/memory.max": "700000", "mnt/other/memory.max": "1"},
        [GroupMemory(700_000, 700_000)],
    ),
    System(
        "both versions, memory by the first",
        "9:name=systemd:/\n4:memory:/api/9b\n1:cpu:/\n0::/",
        V1_MOUNTS.replace("cpu,cpuacct", "cpu"),
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT,
            "sys/fs/cgroup/memory/api/9b/memory.limit_in_bytes": "300000",
            "sys/fs/cgroup/memory/api/9b/memory.usage_in_bytes": "100000",
            "sys/fs/cgroup/unified/cgroup.controllers": "hugetlb",
        },
        [GroupMemory(300_000, 200_000)],
    ),
    System("nothing is mounted", "0::/", "", {"sys/fs/cgroup/memory.max": "1"}),
    System("no groups", "", V2_MOUNT, {"sys/fs/cgroup/memory.max": "1"}),
    System("texts that are none", "x\n::\n0::\n0::x\n", f"- cgroup2\n\n1 2 - cgroup\n{V2_MOUNT}", {}),
    System(
        "numbers that are none", "0::/", V2_MOUNT, {"sys/fs/cgroup/memory.max": "-5", "sys/fs/cgroup/cpu.max": "1 0"}
    ),
]


def write(root: Path, system: System) -> None:
    files = {"proc/self/cgroup": system.cgroup, "proc/self/mountinfo": system.mounts, **system.groups}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_every_group_from_the_process_s_own_up_counts(system: System, tmp_path: Path) -> None:
    write(tmp_path, system)
    assert memory_limits(tmp_path) == system.memory
    assert cpu_quotas(tmp_path) == system.cores


def test_a_system_without_proc(tmp_path: Path) -> None:
    assert (memory_limits(tmp_path), cpu_quotas(tmp_path)) == ([], [])


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=30))
def test_whatever_is_in_the_files_is_no_error(tmp_path: Path, cgroup: str, mounts: str, number: str) -> None:
    """Beside what a system writes itself."""
    texts = (f"{text}\n{ours}" for text, ours in ((cgroup, "0::/"), (mounts, V2_MOUNT)))
    for name, text in zip(("cgroup", "mountinfo"), texts, strict=True):
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self" / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    for name in ("memory.max", "memory.stat", "memory.current", "cpu.max"):
        (tmp_path / "sys/fs/cgroup" / name).write_text(number, encoding="utf-8", errors="surrogatepass")
    assert len(memory_limits(tmp_path)) <= 1
    assert len(cpu_quotas(tmp_path)) <= 1
