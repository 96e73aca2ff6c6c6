"""Steps: real processes, their limits, logs and scripts. The programs are modules of a folder made here."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trioton.convert.processes import Limits, Processes, StepFailed

pytestmark = pytest.mark.slow

PROGRAMS = {
    "add": "def run(arguments):\n    print('adding')\n    return {'sum': arguments['a'] + arguments['b']}\n",
    "fail": "def run(arguments):\n    raise ValueError('first line\\nsecond line')\n",
    "kill": "import os\ndef run(arguments):\n    print('last words', flush=True)\n    os.kill(os.getpid(), 9)\n",
    "sleep": (
        "import subprocess, sys, time\n"
        "def run(arguments):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    open('child', 'w').write(str(child.pid))\n"
        "    time.sleep(600)\n"
    ),
    "hold": (
        "import ctypes, subprocess, sys\n"
        "def run(arguments):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    open('child', 'w').write(str(child.pid))\n"
        "    ctypes.PyDLL(None).sleep(600)\n"  # no other thread runs meanwhile
    ),
    "grow": "def run(arguments):\n    return {'length': len(bytearray(arguments['bytes']))}\n",
    "import": "def run(arguments):\n    import no_such_package\n",
}


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    return made(tmp_path, monkeypatch)


def made(work: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 60, memory: int = 1 << 30) -> Processes:
    """Whose processes find the programs above as if they were there."""
    plugins = work / "plugins"
    plugins.mkdir()
    for name, text in PROGRAMS.items():
        (plugins / f"{name}.py").write_text(text)
    extended = f"import trioton.convert.programs as programs; programs.__path__.append({str(plugins)!r})\n"
    (plugins / "sitecustomize.py").write_text(extended)
    monkeypatch.setenv("PYTHONPATH", str(plugins))
    return Processes(work, Limits(seconds, memory))


def has_ended(pid: int) -> bool:
    """Whether it ends soon: a kill takes its time on a busy machine."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 30)[0])
    finally:
        os.close(process)


def test_a_step_answers_and_leaves_its_log(processes: Processes, tmp_path: Path) -> None:
    result = processes.run("add", {"a": 1, "b": 2}, "first sum")
    assert result["sum"] == 3
    assert result["seconds"] >= 0
    assert "python" in result["versions"]
    assert (tmp_path / "steps/01-first sum/log.txt").read_text() == "adding\n"


def test_the_script_repeats_the_step_with_what_its_arguments_say_now(processes: Processes, tmp_path: Path) -> None:
    processes.run("add", {"a": 1, "b": 2})
    folder = tmp_path / "steps/01-add"
    given = json.loads((folder / "arguments.json").read_text())
    given["arguments"]["b"] = 40
    (folder / "arguments.json").write_text(json.dumps(given))
    (folder / "result.json").unlink()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(folder / "run.sh")], cwd="/", env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "adding\n"), done.stderr
    assert json.loads((folder / "result.json").read_text())["sum"] == 41


def test_an_error_is_told_with_its_first_line_and_the_place_of_the_log(processes: Processes, tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match=r"^fail: ValueError: first line \(log: .*01-fail/log.txt\)$"):
        processes.run("fail", {})
    assert "second line" in (tmp_path / "steps/01-fail/log.txt").read_text()


def test_a_process_that_dies_is_told_with_its_last_words(processes: Processes) -> None:
    with pytest.raises(StepFailed, match="kill: ended by SIGKILL: last words"):
        processes.run("kill", {})


def test_a_step_that_takes_too_long_is_ended_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = made(tmp_path, monkeypatch, seconds=5)
    with pytest.raises(StepFailed, match=r"sleep: .*it took longer than 5 s \(--step-secs\)"):
        processes.run("sleep", {})
    assert has_ended(int((tmp_path / "child").read_text()))


def test_a_step_has_no_more_memory_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = made(tmp_path, monkeypatch, memory=256 << 20)
    assert processes.run("grow", {"bytes": 1 << 20})["length"] == 1 << 20
    with pytest.raises(StepFailed, match="grow: out of memory, by the limit of --step-memory-mb"):
        processes.run("grow", {"bytes": 512 << 20})


def test_a_package_that_is_not_there_is_named(processes: Processes) -> None:
    with pytest.raises(StepFailed, match="import: not installed: no_such_package"):
        processes.run("import", {})


def test_a_result_that_is_missing_is_a_failure(processes: Processes, tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="no_such_program"):
        processes.run("no_such_program", {})
    assert processes.run("add", {"a": 2, "b": 2})["sum"] == 4  # and the next one has a folder of its own
    assert sorted(path.name for path in (tmp_path / "steps").iterdir()) == ["01-no-such-program", "02-add"]


def test_a_process_ends_with_its_owner(processes: Processes, tmp_path: Path) -> None:
    """The owner's end of standard input closes, however it has ended."""
    with pytest.raises(StepFailed):
        processes.run("fail", {})
    arguments = tmp_path / "steps/01-fail/arguments.json"
    given: dict[str, Any] = json.loads(arguments.read_text())
    arguments.write_text(json.dumps({**given, "program": "sleep"}))
    line = (tmp_path / "steps/01-fail/run.sh").read_text().strip().splitlines()[-1]
    command = [*line.removeprefix("exec ").split(), "--owned"]
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ["PYTHONPATH"]])}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a step ends when it lets other threads run")
@pytest.mark.parametrize("program", ["sleep", "hold"])
def test_nothing_is_left_of_a_killed_owner(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, monkeypatch)
    text = (
        "import sys; from pathlib import Path; from trioton.convert.processes import Limits, Processes\n"
        f"Processes(Path(sys.argv[1]), Limits(600, 1 << 30)).run({program!r}, {{}})"
    )
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ["PYTHONPATH"]])}
    with subprocess.Popen([sys.executable, "-c", text, str(tmp_path)], env=environment) as owner:
        try:
            written = tmp_path / "child"
            end = time.monotonic() + 60
            while not (written.exists() and written.read_text()):
                assert owner.poll() is None
                assert time.monotonic() < end
                time.sleep(0.02)
            (step,) = map(int, Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split())
        finally:
            owner.kill()
    left = [pid for pid in (step, int(written.read_text())) if not has_ended(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
