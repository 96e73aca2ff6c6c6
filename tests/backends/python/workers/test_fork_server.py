"""Workers that are forked from a fork server behave as those that are started directly, and start sooner."""

from __future__ import annotations

import os
import signal
import venv
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from backends.affinity import usable_cores
from backends.interface import InstanceDied, InstanceSpec
from backends.python import PythonBackend
from backends.python.workers import fork_server, process
from backends.server_resources import ServerResources, server_resources
from protocol.errors import Internal
from tests.backends.python.models import (
    CONFIG,
    IDENTITY,
    executing,
    infer,
    model_source,
    output,
    parameters,
    request,
    running,
)
from tests.backends.python.processes import children, is_alive, open_descriptors, until

# Replies with a number that the test asks for by its expression.
EVALUATES = executing("return [answer(np.array([float(eval(r.request_id()))])) for r in requests]")


@pytest.fixture
async def resources() -> AsyncIterator[ServerResources]:
    """A server's; nothing is left when it closes them."""
    before = open_descriptors()
    async with server_resources() as made:
        yield made
    assert not children()
    assert not open_descriptors() - before


def backend(
    directory: Path,
    resources: ServerResources,
    text: str = EVALUATES,
    *,
    cores: frozenset[int] = frozenset(),
    settings: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
) -> PythonBackend:
    config = msgspec.structs.replace(CONFIG, parameters=parameters(**(options or {})))
    source = replace(model_source(directory, text, config=config, settings=settings), resources=resources)
    return PythonBackend(InstanceSpec(source, "m_0", cpu_cores=cores))


async def evaluated(instance: PythonBackend, expression: str) -> Any:
    return output((await infer(instance, request(id=expression)))[0]).item()


async def pid_of(instance: PythonBackend) -> int:
    return int(await evaluated(instance, "os.getpid()"))


def the_fork_server() -> int:
    [found] = children()
    return found


async def test_all_workers_of_an_interpreter_have_one_parent(tmp_path: Path, resources: ServerResources) -> None:
    """Which outlives them, and is the server's only child."""
    async with running(backend(tmp_path, resources)) as one, running(backend(tmp_path, resources)) as other:
        pids = {await pid_of(one), await pid_of(other)}
        assert len(pids) == 2
        assert {await evaluated(one, "os.getppid()"), await evaluated(other, "os.getppid()")} == {the_fork_server()}
        assert await evaluated(one, "os.getpgid(0)") == await pid_of(one)
    assert not any(map(is_alive, pids))
    async with running(backend(tmp_path, resources)) as again:
        assert await evaluated(again, "os.getppid()") == the_fork_server()


async def test_a_worker_has_its_own_surroundings(tmp_path: Path, resources: ServerResources) -> None:
    (tmp_path / "here").mkdir()
    core = min(usable_cores())
    options = {"WORKING_DIRECTORY": "here", "ENV:MARK": "5"}
    async with (
        running(backend(tmp_path, resources, cores=frozenset({core}), options=options)) as bound,
        running(backend(tmp_path, resources)) as free,
    ):
        assert await evaluated(bound, "os.environ['MARK']") == 5
        assert await evaluated(bound, f"os.getcwd() == {str(tmp_path / 'here')!r}")
        assert await evaluated(bound, "len(os.sched_getaffinity(0))") == 1
        assert not await evaluated(free, "'MARK' in os.environ")
        assert await evaluated(free, f"os.getcwd() == {os.getcwd()!r}")
        assert await evaluated(free, "len(os.sched_getaffinity(0))") == len(usable_cores())


async def test_what_a_worker_finds_is_what_it_would_have_by_itself(tmp_path: Path, resources: ServerResources) -> None:
    """But for its parent: modules, path, threads, signals, descriptors, stdin."""
    text = executing("""
        import threading
        found = [sorted(sys.modules), sys.path, [each.name for each in threading.enumerate()],
            [signal.getsignal(each).__class__.__name__ for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
            len(os.listdir("/proc/self/fd")), os.readlink("/proc/self/fd/0"), sys.argv[2:], sys.gettrace(), __name__]
        return [answer(np.array([repr(found).encode()], np.object_))]
    """)
    answers = []
    for flag in ("true", "false"):
        async with running(backend(tmp_path, resources, text, settings={"worker-fork-server": flag})) as instance:
            [answer] = await infer(instance, request())
            answers.append(eval(output(answer).item()))
    modules, alone = set(answers[0].pop(0)), set(answers[1].pop(0))
    assert modules - alone <= {"trioton_worker.fork_server", "trioton_worker.datagrams"}
    assert not alone - modules
    assert answers[0] == answers[1]


async def test_what_only_some_workers_need_is_imported_for_them(tmp_path: Path, resources: ServerResources) -> None:
    """Once for all that come, before they are forked."""
    loaded = "'asyncio' in sys.modules"
    coroutine = EVALUATES.replace("def execute", "async def execute")
    async with running(backend(tmp_path / "plain", resources)) as plain:
        assert not await evaluated(plain, loaded)
        async with running(backend(tmp_path / "coroutine", resources, coroutine)) as instance:
            assert await evaluated(instance, loaded)
            assert not await evaluated(plain, loaded)
        async with running(backend(tmp_path / "plain", resources)) as later:
            assert await evaluated(later, loaded)


async def test_workers_draw_different_numbers(tmp_path: Path, resources: ServerResources) -> None:
    text = EVALUATES.replace("import numpy", "import random\nimport numpy")
    async with running(backend(tmp_path, resources, text)) as one, running(backend(tmp_path, resources, text)) as other:
        for expression in ("np.random.random()", "random.random()"):
            assert await evaluated(one, expression) != await evaluated(other, expression)


@pytest.mark.parametrize(
    ("end", "how"),
    [("os._exit(7)", "exited with code 7"), ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV")],
)
async def test_how_a_worker_ended_is_told(
    tmp_path: Path, resources: ServerResources, end: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what it printed; and the next one is forked from the same fork server."""
    caplog.set_level("INFO", "trioton")
    async with running(backend(tmp_path, resources)) as instance:
        parent = the_fork_server()
        with pytest.raises(InstanceDied, match=f"its worker process {how}"):
            await evaluated(instance, f"[print('last words'), {end}]")
    assert "m_0: last words" in [record.getMessage() for record in caplog.records]
    async with running(backend(tmp_path, resources)) as again:
        assert await evaluated(again, "os.getppid()") == parent == the_fork_server()


async def test_a_load_that_fails_says_why(tmp_path: Path, resources: ServerResources) -> None:
    begin = "def initialize(self, args):\n        print('a'); os._exit(5)\n    def execute"
    instance = backend(tmp_path, resources, EVALUATES.replace("def execute", begin))
    with pytest.raises(Internal, match=r"exited with code 5 during initialize; it printed last:\n  a"):
        await instance.load()
    await instance.unload()


async def test_a_fork_server_that_dies_takes_its_workers_and_another_one_is_made(
    tmp_path: Path, resources: ServerResources
) -> None:
    async with running(backend(tmp_path, resources)) as instance:
        pid, before = await pid_of(instance), the_fork_server()
        os.kill(before, signal.SIGKILL)
        await until(lambda: not is_alive(pid))
        with pytest.raises(InstanceDied):
            await pid_of(instance)
    async with running(backend(tmp_path, resources)) as again:
        assert await evaluated(again, "os.getppid()") == the_fork_server() != before


async def test_one_that_hangs_is_given_up(
    tmp_path: Path, resources: ServerResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is started by itself."""
    async with running(backend(tmp_path, resources)):
        before = the_fork_server()
    os.kill(before, signal.SIGSTOP)
    monkeypatch.setattr(fork_server, "_FORK_SECONDS", 0.05)
    async with running(backend(tmp_path, resources)) as instance:
        assert await evaluated(instance, "os.getppid()") == os.getpid()


async def test_the_flag_turns_it_off(tmp_path: Path, resources: ServerResources) -> None:
    async with running(backend(tmp_path, resources, settings={"worker-fork-server": "false"})) as instance:
        assert await evaluated(instance, "os.getppid()") == os.getpid()


async def test_where_there_can_be_none_workers_are_started_by_themselves(
    tmp_path: Path, resources: ServerResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "main.py"
    broken.write_text("import sys; sys.exit('no')")

    class Broken(process.WorkerProcess):
        def __init__(self, *arguments: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(process, "MAIN", broken)
                super().__init__(*arguments)

    monkeypatch.setattr(fork_server, "WorkerProcess", Broken)
    for _ in range(2):
        async with running(backend(tmp_path, resources)) as instance:
            assert await evaluated(instance, "os.getppid()") == os.getpid()


async def test_fork_servers_that_nobody_uses_are_bounded(tmp_path: Path, resources: ServerResources) -> None:
    for number in range(7):
        async with running(backend(tmp_path, resources, options={"ENV:MARK": str(number)})) as instance:
            assert await evaluated(instance, "os.environ['MARK']") == number
    assert len(children()) <= 5


@pytest.mark.parametrize("is_worker", [True, False], ids=["a worker", "a completion"])
async def test_one_that_nobody_needs_ends_and_starts_again(
    tmp_path: Path, resources: ServerResources, monkeypatch: pytest.MonkeyPatch, is_worker: bool
) -> None:
    monkeypatch.setattr(fork_server, "_IDLE_SECONDS", 0.05)
    parents = set()
    for _ in range(2):
        if is_worker:
            async with running(backend(tmp_path, resources)) as instance:
                parents.add(the_fork_server())
                assert {await evaluated(instance, "os.getppid()")} == {the_fork_server()} <= parents
        else:
            text = EVALUATES + "\n    @staticmethod\n    def auto_complete_config(config): return config\n"
            await PythonBackend.complete_config(backend(tmp_path, resources, text).spec.source)
            parents.add(the_fork_server())
        await until(lambda: not children())
    assert len(parents) == 2


async def test_one_that_a_worker_needs_stays(
    tmp_path: Path, resources: ServerResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other workers that end do not count."""
    monkeypatch.setattr(fork_server, "_IDLE_SECONDS", 1e-3)
    async with running(backend(tmp_path, resources)) as first:
        parent = the_fork_server()
        for _ in range(3):
            async with running(backend(tmp_path, resources)) as instance:
                assert await evaluated(instance, "os.getppid()") == parent
        assert await evaluated(first, "os.getppid()") == parent


async def test_a_model_without_completion_starts_no_process(tmp_path: Path, resources: ServerResources) -> None:
    source = backend(tmp_path, resources, executing(IDENTITY)).spec.source
    assert await PythonBackend.complete_config(source) is source.config
    assert not children()


async def test_each_environment_has_a_fork_server_of_its_own(
    tmp_path: Path, resources: ServerResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it has what a worker needs; until then the load says what is missing."""
    environment = tmp_path / "env"
    venv.create(environment, symlinks=True)
    options = {"EXECUTION_ENV_PATH": str(environment)}
    instance = backend(tmp_path, resources, options=options)
    with pytest.raises(Internal, match="needs numpy in the model's environment"):
        await instance.load()
    [site_packages] = environment.glob("lib/python*/site-packages")
    (site_packages / "numpy.pth").write_text(str(Path(np.__file__).parents[1]))
    monkeypatch.setattr(fork_server, "_RETRY_SECONDS", 0.0)
    async with running(backend(tmp_path, resources)) as own, running(instance):
        assert await evaluated(instance, f"sys.prefix == {str(environment)!r}")
        assert await evaluated(instance, f"os.environ['VIRTUAL_ENV'] == {str(environment)!r}")
        parents = {await evaluated(own, "os.getppid()"), await evaluated(instance, "os.getppid()")}
        assert parents == set(children())
        assert len(parents) == 2


async def test_many_start_at_the_same_time(tmp_path: Path, resources: ServerResources) -> None:
    instances = [backend(tmp_path, resources) for _ in range(6)]
    async with trio.open_nursery() as nursery:
        for instance in instances:
            nursery.start_soon(instance.load)
    assert the_fork_server()
    async with trio.open_nursery() as nursery:
        for instance in instances:
            nursery.start_soon(instance.unload)


async def test_a_load_that_is_cancelled_leaves_nothing(tmp_path: Path, resources: ServerResources) -> None:
    for seconds in (0.0, 0.01, 0.05, 0.2):
        instance = backend(tmp_path, resources)
        with trio.move_on_after(seconds):
            await instance.load()
        with trio.CancelScope(shield=True):
            await instance.unload()
    async with running(backend(tmp_path, resources)) as instance:
        assert await pid_of(instance)
