"""The command `tritonserver`, without a server: what it makes of its words, and how it gives way to Triton's own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

from trioton import tritonserver
from trioton.settings import Settings
from trioton.tritonserver import VARIABLE, main, other_program

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of servers that would have run."""
    seen: list[Settings] = []

    def serve(settings: Settings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(tritonserver, "serve_process", serve)
    return seen


def test_the_words_of_model_analyzer(served: list[Settings], tmp_path: Path) -> None:
    words = ["--model-repository", str(tmp_path), "--model-control-mode", "explicit"]
    words += ["--http-port", "8000", "--grpc-port", "8001", "--metrics-port", "8002"]
    words += ["--metrics-interval-ms", "1000", "--strict-model-config", "false"]
    assert main(words) == 0
    (settings,) = served
    assert settings.id == "triton"
    assert (settings.model_control_mode, settings.metrics_interval_ms) == ("explicit", 1000)
    assert settings.auto_complete_config()


def test_words_as_scripts_have_them(served: list[Settings], tmp_path: Path) -> None:
    """Any letter case, `=` or not, words for truth, and names that are cut short."""
    words = [f"--model-repo={tmp_path}", "--model-control-mode=EXPLICIT", "--log-verbose=1", "--log-info", "TRUE"]
    words += ["--exit-on-error=False", "--allow-metrics=0", "--strict-readiness", "OFF", "--rate-limit=OFF"]
    assert main([*words, "--backend-config=tensorflow,version=2", "--load-model=*"]) == 0
    (settings,) = served
    assert settings.model_control_mode == "explicit"
    assert settings.log_verbose == 1
    assert settings.log_info
    assert (settings.exit_on_error, settings.allow_metrics, settings.strict_readiness) == (False, False, False)


def test_the_name_can_be_another(served: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([f"--model-repository={tmp_path}", "--id=mine"]) == 0
    monkeypatch.setenv("TRIOTON_ID", "ours")
    assert main([f"--model-repository={tmp_path}"]) == 0
    assert [settings.id for settings in served] == ["mine", "ours"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--no-such-flag=1"], 'Unexpected argument: Bad option: "--no-such-flag".'),
        (["--http-pot=1"], 'Unexpected argument: Bad option: "--http-pot". Did you mean --http-port?'),
        (["demo"], "Unexpected argument: demo"),
        (["-x"], "Unexpected argument: -x"),
        ([], "--model-repository is required"),
    ],
)
def test_what_is_wrong_is_told(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the words that Model Analyzer looks for in the output of a server that does not come up."""
    assert main(words) == 1
    usage, told = capsys.readouterr().err.splitlines()
    assert usage == "usage: tritonserver --model-repository=<path> [flags]"
    assert told.startswith(text)


def test_help_has_all_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: tritonserver ")
    for name in ("model-repository", "http-port", "grpc-port", "trace-config", "rate-limit", "cache-config"):
        assert f"--{name}=" in shown


def test_it_is_installed() -> None:
    scripts = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]
    module, _, name = scripts["tritonserver"].partition(":")
    assert getattr(import_module(module), name) is main


def program(folder: Path, text: str = "#!/bin/sh\n") -> Path:
    folder.mkdir()
    made = folder / "tritonserver"
    made.write_text(text)
    made.chmod(0o755)
    return made


def test_the_other_program_is_the_next_on_path(tmp_path: Path) -> None:
    own, first, second = (program(tmp_path / name) for name in ("own", "first", "second"))
    path = os.pathsep.join(str(each.parent) for each in (first, own, second))
    assert other_program(path, str(own)) == second
    assert other_program(path, str(second)) is None
    assert other_program(path, "/no/such/program") == first
    assert other_program(str(own.parent), str(own)) is None
    (tmp_path / "link").symlink_to(own.parent)
    assert other_program(f"{path}{os.pathsep}{tmp_path / 'link'}", str(own)) is None


def run_command(words: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trioton.tritonserver", *words]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_it_gives_way_where_that_is_said(tmp_path: Path) -> None:
    """With the same words, in the same process."""
    other = program(tmp_path / "other", '#!/bin/sh\necho "other: $*"\nexit 7\n')
    done = run_command(["--model-repository=x y", "--id", "z"], {VARIABLE: "false", "PATH": str(other.parent)})
    assert (done.returncode, done.stdout) == (7, "other: --model-repository=x y --id z\n")
    nowhere = run_command([], {VARIABLE: "0", "PATH": str(tmp_path)})
    assert nowhere.returncode == 1
    assert "there is none behind this one on PATH" in nowhere.stderr
    wrong = run_command([], {VARIABLE: "maybe"})
    assert wrong.returncode == 1
    assert f"{VARIABLE}: expected true or false (or on, off, 1, 0), got 'maybe'" in wrong.stderr
