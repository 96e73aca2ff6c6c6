"""The parts in which `make test` runs the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import FIRST_PART, FLAGS, FRAMEWORK_PARTS, FRAMEWORKS, ROOT, failures, judge, parts, run

COLLECT = f"""
import sys
import pytest
status = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]])
print("imported:", *sorted(sys.modules.keys() & set({FRAMEWORKS})))
sys.exit(status)
"""


@pytest.mark.slow
def test_tests_without_a_framework_import_none() -> None:
    """A module that imports one at its top belongs into that framework's part; or the import, into the test."""
    command = [sys.executable, "-c", COLLECT, *parts(first=())["no framework"]]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    assert found.stdout.splitlines()[-1] == "imported:"


def test_what_a_part_names_is_there() -> None:
    paths = [path for each in (FIRST_PART, *FRAMEWORK_PARTS.values()) for path in each]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert len(paths) == len(set(paths))


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name in ("plain", "special"):
        (tmp_path / f"test_{name}.py").write_text(
            f"def test_{name}():\n    with open('ran', 'a') as file:\n        file.write('{name} ')\n"
        )
    return tmp_path


@pytest.mark.slow
def test_every_test_runs_once_and_the_others_run_when_a_part_fails(suite: Path) -> None:
    selections = parts({"special": ["test_special.py"]}, first=())
    arguments = ["-q", "-p", "no:cacheprovider"]
    assert run(arguments, selections, suite) == 0
    assert (suite / "ran").read_text() == "plain special "
    with (suite / "test_plain.py").open("a") as file:
        file.write("    assert False\n")
    assert run(arguments, selections, suite) == 1
    assert (suite / "ran").read_text() == "plain special plain special "


@pytest.mark.slow
def test_what_has_failed_is_told_once_more_at_the_end(suite: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (suite / "test_plain.py").open("a") as file:
        file.write("    assert 'two lines'.split() == ['three']\n")
    assert run(["-q", "-p", "no:cacheprovider"], parts({"special": ["test_special.py"]}, first=()), suite) == 1
    *_, said = capfd.readouterr().out.partition("part 2 of 2")[2].partition("passed")
    assert "FAILURE test_plain::test_plain\n" in said
    assert "test_plain.py:4: AssertionError\n" in said
    assert "special::" not in said
    assert said.endswith("Failed: no framework\n")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_a_failure_is_told_at_once_and_after_many_a_run_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, processes: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_many.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef broken():\n    raise ValueError('broken')\n"
        "def test_error(broken):\n    pass\n"
        "@pytest.mark.parametrize('n', range(200))\ndef test_one(n):\n    assert n < 0\n"
    )
    assert run([*FLAGS, "-q", "-p", "no:cacheprovider", *processes], {"all": ["."]}, tmp_path) != 0
    said = capfd.readouterr().out
    at_once, _, rest = said.partition("= ERRORS =")
    assert at_once.count("ERROR test_many.py::test_error\n") == 1
    assert at_once.count("    E       ValueError: broken\n") == 1
    assert 10 < at_once.count("FAILURE test_many.py::test_one[") < 40
    assert "    E       assert 7 < 0\n" in at_once
    assert re.search(r"^    load \d", at_once, re.MULTILINE)
    assert "stopping after 20 failures" in rest


@pytest.mark.slow
def test_a_test_whose_time_is_over_ends_its_process_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it waits for a thread, which an exception in its own would not end."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    (tmp_path / "test_some.py").write_text(
        "import threading, trio\n"
        "async def test_stuck():\n    await trio.to_thread.run_sync(threading.Event().wait)\n"
        "async def test_other():\n    await trio.sleep(0)\n"
    )
    arguments = [*FLAGS, "-q", "-p", "no:cacheprovider", "-n", "1", "--timeout", "3"]
    assert run(arguments, {"all": ["."]}, tmp_path) == pytest.ExitCode.TESTS_FAILED
    said = capfd.readouterr()
    assert "crashed while running 'test_some.py::test_stuck'\n" in said.out
    assert "1 failed, 1 passed" in said.out
    assert "worker_fn" in said.err, "where the thread is"


def test_many_failures_are_counted(tmp_path: Path) -> None:
    cases = "".join(f"<testcase classname='a' name='t{n}'><failure>\n1\n2</failure></testcase>" for n in range(25))
    (tmp_path / "x.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    lines = list(failures(tmp_path / "x.xml"))
    assert lines[:4] == ["FAILURE a::t0", "    ", "    1", "    2"]
    assert lines[-1] == "and 5 more"


@pytest.mark.slow
def test_arguments_are_those_of_every_part(suite: Path) -> None:
    """A part that has no such test has not failed."""
    selections = parts({"special": ["test_special.py"]}, first=())
    arguments = ["-q", "-p", "no:cacheprovider", "-k"]
    assert run([*arguments, "special"], selections, suite) == 0
    assert (suite / "ran").read_text() == "special "
    assert run([*arguments, "nothing"], selections, suite) == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(
    ("statuses", "status"), [((0, 0), 0), ((5, 0), 0), ((5, 5), 5), ((0, 1), 1), ((3, 1), 3), ((0, -9), -9)]
)
def test_the_exit_status(statuses: tuple[int, ...], status: int) -> None:
    assert judge({str(number): each for number, each in enumerate(statuses)}) == status
