"""A server in a control group that leaves it little memory, where this machine lets one make such a group."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.repository import add_types
from tests.e2e.server_process import ServerProcess, eventually
from trioton.control_groups import group_directories

LIMIT = 300_000_000
UPLOADS = 6
UPLOAD = np.zeros(60_000_000, np.uint8)


@pytest.fixture
def group() -> Iterator[Path]:
    """A group without a limit, in one that has it, below that of this process: as a unit of systemd or a job lies."""
    for own in group_directories("memory"):
        outer = own / f"trioton-test-{os.getpid()}"
        inner = outer / "unit"
        try:
            inner.mkdir(parents=True)
            limit = next(path for name in ("memory.max", "memory.limit_in_bytes") if (path := outer / name).exists())
            limit.write_text(str(LIMIT))
        except (OSError, StopIteration):
            with suppress(OSError):
                inner.rmdir()
            with suppress(OSError):
                outer.rmdir()
            continue
        yield inner
        processes = inner / "cgroup.procs"
        assert eventually(partial(_is_empty, processes))
        inner.rmdir()
        outer.rmdir()
        return
    pytest.skip("this machine lets nobody make a control group for memory here")


def _is_empty(processes: Path) -> bool:
    return not processes.read_text()


def upload(protocol: str, address: str) -> str:
    """One large request; answers how it went."""
    with Client(protocol, address) as client:
        try:
            answer = client.infer("bytes", {"IN_UINT8": UPLOAD})
        except InferenceServerException as error:
            return str(error.message())
        return f"{answer['UINT8'].nbytes} bytes"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_large_uploads_do_not_kill_a_server_that_has_little_memory(protocol: str, group: Path, tmp_path: Path) -> None:
    """They are refused or answered, and what is small is answered after them."""
    add_types(tmp_path / "bytes", ("UINT8",))
    launcher = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    with ServerProcess(repository=tmp_path, launcher=launcher) as server:
        address = server.addresses[protocol]
        outcomes: list[str] = []
        uploads = [threading.Thread(target=lambda: outcomes.append(upload(protocol, address))) for _ in range(UPLOADS)]
        for each in uploads:
            each.start()
        for each in uploads:
            each.join()
        assert len(outcomes) == UPLOADS
        assert {outcome for outcome in outcomes if "max-request-memory" not in outcome} <= {f"{UPLOAD.nbytes} bytes"}
        with Client(protocol, address) as client:
            small = np.ones(1000, np.uint8)
            assert client.infer("bytes", {"IN_UINT8": small})["UINT8"].tolist() == small.tolist()
        killed = [line for line in (group / "memory.oom_control", group / "memory.events") if line.exists()]
        assert "oom_kill 0" in killed[0].read_text()
