"""Where the threads and processes of a server's instances may run, as the kernel tells it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from backends.affinity import usable_cores
from tests.e2e.client import Client, add_sub_inputs, slow_inputs
from tests.e2e.repository import add_add_sub, copy_python_model
from tests.e2e.server_process import ServerProcess

CORES = sorted(usable_cores())

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores to choose from")


def allowed(pid: int) -> list[str]:
    """The cores of each of a process's threads, as in 0-3."""
    found = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status.read_text(), re.MULTILINE)
        assert match is not None
        found.append(match.group(1))
    return found


def policy(model: Path, name: str) -> None:
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace("instance_group [ {", f'instance_group [ {{ host_policy: "{name}" '))


@pytest.mark.parametrize("isolation", ["process", "threads", "fork"])
def test_workers_and_instance_threads_stay_where_they_belong(tmp_path: Path, isolation: str) -> None:
    """The model that names a policy has its cores, the other those of its kind; the server itself has all."""
    first, last = CORES[0], CORES[-1]
    add_add_sub(tmp_path / "add_sub", versions=(1,))
    copy_python_model("slow", tmp_path)
    policy(tmp_path / "slow", "right")
    with (tmp_path / "slow" / "config.pbtxt").open("a") as config:
        config.write(f'parameters {{ key: "ISOLATION" value {{ string_value: "{isolation}" }} }}\n')
    flags = (f"--host-policy=cpu,cpu-cores={first}", f"--host-policy=right,cpu-cores={last}")
    with ServerProcess(*flags, repository=tmp_path) as server, Client("grpc", server.addresses["grpc"]) as client:
        assert client.infer("add_sub", add_sub_inputs())["OUTPUT0"].shape == (1, 16)
        for value in range(2):
            assert client.infer("slow", slow_inputs(value, 0))["VALUE"] == np.array([value])
        own = allowed(server.pid)
        workers = {pid: allowed(pid) for pid in server.workers()}
    assert str(first) in own  # the instance of add_sub
    assert str(last) not in own
    assert any(cores not in (str(first), str(last)) for cores in own)  # the loop
    bound = [cores for each in workers.values() for cores in each]
    assert str(first) not in bound
    if isolation == "process":
        assert set(bound) == {str(last)}
    assert bound.count(str(last)) >= 2


def test_onnxruntimes_own_threads_go_along(tmp_path: Path) -> None:
    """Told to use two threads, a session has one more beside the instance's: both are bound."""
    add_add_sub(tmp_path / "add_sub", versions=(1,))
    with (tmp_path / "add_sub" / "config.pbtxt").open("a") as config:
        config.write('parameters { key: "intra_op_thread_count" value { string_value: "3" } }\n')
    core = CORES[-1]
    with (
        ServerProcess(f"--host-policy=cpu,cpu-cores={core}", repository=tmp_path) as server,
        Client("grpc", server.addresses["grpc"]) as client,
    ):
        client.infer("add_sub", add_sub_inputs())
        assert allowed(server.pid).count(str(core)) == 3


def test_a_policy_that_nobody_sets_is_told_of(tmp_path: Path) -> None:
    copy_python_model("slow", tmp_path)
    policy(tmp_path / "slow", "nowhere")
    with ServerProcess(repository=tmp_path) as server:
        server.wait_for_line("model 'slow' wants host policy 'nowhere', which no --host-policy sets")
        assert server.addresses
