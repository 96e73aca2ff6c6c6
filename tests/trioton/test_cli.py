"""The command line: how words become settings, and how usage errors look. No server is started here."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from trioton.cli import COMMANDS, ESCAPE_VARIABLE, PIPE_CLOSED, main, settings_from
from trioton.flags.fields import UsageError
from trioton.flags.server import BackendSetting
from trioton.imports import imports
from trioton.version import commit


def test_flags_win_over_the_environment() -> None:
    environment = {"TRIOTON_HTTP_PORT": "1234", "TRIOTON_GRPC_PORT": "1235", "TRIOTON_MODEL_REPOSITORY": "/a;/b"}
    settings = settings_from(["--http-port=99", "--model-store=/c"], environment)
    assert (settings.http_port, settings.grpc_port) == (99, 1235)
    assert settings.model_repository == (Path("/c"),)
    assert settings_from([], environment).model_repository == (Path("/a"), Path("/b"))


def test_a_whole_command_line() -> None:
    """As people write it for Triton."""
    settings = settings_from(
        [
            "--model-repository=/a",
            "--model-repository",
            "/b",
            "--model-control-mode=explicit",
            "--load-model=x",
            "--load-model=y",
            "--backend-config=python,shm-default-byte-size=1048576",
            "--disable-auto-complete-config",
            "--strict-readiness=false",
            "--exit-timeout-secs=5",
            "--log-verbose=1",
        ],
        {},
    )
    assert settings.model_repository == (Path("/a"), Path("/b"))
    assert (settings.model_control_mode, settings.load_model) == ("explicit", ("x", "y"))
    assert settings.backend_config == (BackendSetting("python", "shm-default-byte-size", "1048576"),)
    assert settings.disable_auto_complete_config
    assert not settings.strict_readiness
    assert (settings.exit_timeout_secs, settings.log_verbose) == (5, 1)


def test_completion_is_turned_off_by_either_of_tritons_flags() -> None:
    assert settings_from(["--model-repository=/a"], {}).auto_complete_config()
    assert settings_from(["--model-repository=/a", "--strict-model-config=false"], {}).auto_complete_config()
    assert not settings_from(["--model-repository=/a", "--strict-model-config=true"], {}).auto_complete_config()
    assert not settings_from(["--model-repository=/a", "--disable-auto-complete-config"], {}).auto_complete_config()


def test_triton_s_variable_for_escapes() -> None:
    arguments = ["--model-repository=/a"]
    assert settings_from(arguments, {}).log_escape
    assert settings_from(arguments, {ESCAPE_VARIABLE: "1"}).log_escape
    assert not settings_from(arguments, {ESCAPE_VARIABLE: "0"}).log_escape


def test_choices_are_taken_in_any_letter_case() -> None:
    """As Triton takes them."""
    settings = settings_from(
        [
            "--model-repository=/a",
            "--model-control-mode=EXPLICIT",
            "--rate-limit=Execution_Count",
            "--log-format=iso8601",
            "--grpc-infer-response-compression-level=HIGH",
            "--trace-config=OpenTelemetry,url=http://localhost:4318/v1/traces",
            "--trace-config=mode=OPENTELEMETRY",
            "--trace-config=level=timestamps",
            "--log-verbose=TRUE",
        ],
        {"TRIOTON_HTTP_USE_SSL": "Off"},
    )
    assert settings.model_control_mode == "explicit"
    assert settings.rate_limit == "execution_count"
    assert settings.log_format == "ISO8601"
    assert settings.grpc_infer_response_compression_level == "high"
    assert settings.tracing().start.mode == "opentelemetry"
    assert settings.log_verbose == 1


def test_names_that_are_given_twice_are_one() -> None:
    """Triton keeps repositories and models to load in sets."""
    repositories = ["--model-repository=/a", "--model-store=/a/", "--model-repository=/b"]
    settings = settings_from([*repositories, "--model-control-mode=explicit", "--load-model=*", "--load-model=*"], {})
    assert settings.repositories(settings.stores({})) == (Path("/a"), Path("/b"))


def test_flags_of_tritons_that_have_no_effect_are_taken_and_told() -> None:
    """A command line that was written for Triton's container works."""
    arguments = [
        "--model-repository=/a",
        "--repoagent-directory=/opt/tritonserver/repoagents",
        "--cache-directory=/opt/tritonserver/caches",
        "--buffer-manager-thread-count=2",
        "--cuda-virtual-address-size=0:1048576",
        "--allow-sagemaker=false",
        "--sagemaker-thread-count=4",
        "--allow-vertex-ai=false",
        "--http-thread-count=0",
        "--exit-timeout-secs=-1",
        "--model-load-thread-count=0",
        "--repository-poll-secs=-1",
        "--metrics-interval-ms=0",
        "--log-verbose=-1",
    ]
    settings = settings_from(arguments, {})
    assert [notice.partition(" ")[0] for notice in settings.notices()] == [
        "--repoagent-directory",
        "--cache-directory",
        "--buffer-manager-thread-count",
        "--cuda-virtual-address-size",
        "--sagemaker-thread-count",
    ]
    assert (settings.exit_timeout_secs, settings.model_load_thread_count, settings.log_verbose) == (0, 1, 0)
    assert settings.repository_poll_secs == 0.0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--model-repository is required"),
        (["serve"], "--model-repository is required"),
        (["--model-repsitory=/a"], 'Bad option: "--model-repsitory". Did you mean --model-repository?'),
        (
            ["sreve"],
            "Unexpected argument: sreve; the commands are serve, run, openai-frontend, demo, batch, fleet, analyze, "
            "doctor, config, repo, convert, perf, perf-analyzer and version",
        ),
        (
            ["--model-repository=/a", "--load-model=x"],
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (["--sagemaker-safe-port-range=1"], "expected <first port>-<last port>, got '1'"),
        (["--model-repository="], "--model-repository: expected a path, got ''"),
        (["-model-repository=/a"], "flags begin with two dashes: --model-repository=/a"),
        (["--model-control-mode=manual"], "expected none or poll or explicit, got 'manual'"),
        (["--model-config-name=a b"], "--model-config-name: expected the name of a file in configs/"),
        (["--model-config-name=../x"], "without .pbtxt, spaces and slashes"),
        (["demo", "--twice"], 'Bad option: "--twice".'),
        (["demo", "--http-port=x"], "--http-port: expected a whole number"),
    ],
)
def test_usage_errors(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Usage and reason on stderr, nothing on stdout, exit code 1."""
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("usage: trioton")
    assert text in shown.err
    assert ("trioton demo" in shown.err.splitlines()[0]) == (arguments[:1] == ["demo"])


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["-h"], ["--http-port=x", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "--model-repository=<path>" in shown.out
    assert shown.err == ""


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_ends_it_without_a_word() -> None:
    """As in `trioton serve --help | head -1`."""
    command = [sys.executable, "-m", "trioton", "serve", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before the first byte is written
        assert process.stderr.read() == b""
        assert process.wait() == PIPE_CLOSED


def test_help_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--once" in shown
    assert "--model-repository" not in shown


@pytest.mark.parametrize("arguments", [["--version"], ["version"], ["serve", "--version"]])
def test_the_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"trioton {metadata.version('trioton')} (commit {commit()})\n"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"], ["serve", "--help"], ["help", "serve"]])
def test_the_first_help_fits_one_screen(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Of 24 lines and 80 columns, with every command and every group of flags; what it names is there."""
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) < 24
    assert max(map(len, shown.splitlines())) <= 80
    for name in COMMANDS:
        assert f"{name} " in shown
    settings_from(["--model-repository=/a", "--model-control-mode=explicit", *_flags_of(shown)], {})


def _flags_of(shown: str) -> list[str]:
    flags = [word for word in shown.split() if re.match(r"--\w", word) and not word.startswith("--help")]
    known = [word.replace("<path>", "/a").replace("<name>", "m") for word in flags]
    return [word for word in known if word not in ("--reload", "--name")]


@pytest.mark.parametrize(
    ("arguments", "shown", "hidden"),
    [
        (["--help=scheduling"], "--rate-limit=", "--http-port="),
        (["serve", "--help", "http"], "--http-port=<integer>", "--rate-limit="),
        (["serve", "--help=http,grpc"], "--grpc-port=<integer>", "--rate-limit="),
        (["help", "grpc"], "--grpc-port=<integer>", "--http-port="),
        (["help", "run"], "--reload", "--http-port="),
        (["help", "run", "http"], "--http-port=", "--debug="),
        (["run", "--help=all"], "--http-port=", "--load-model"),
        (["help", "demo"], "--once", "--model-repository"),
        (["doctor", "--help"], "--backend-directory=", "--http-port="),
        (["--help=all"], "--vertex-ai-port=", "--reload\n"),
        (["--help", "--http-port=1"], "What serve needs first", "--vertex-ai-port"),
    ],
)
def test_help_of_a_group(arguments: list[str], shown: str, hidden: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert shown in text
    assert hidden not in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--help=htp"], "there is no group 'htp' of flags; there are server, stores, loading, gpus, http, openai"),
        (["help", "sreve"], "Unexpected argument: sreve; the commands are"),
        (["version", "now"], "Unexpected argument: now"),
    ],
)
def test_help_that_there_is_not(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert text in capsys.readouterr().err


def test_repositories_without_a_flag(tmp_path: Path) -> None:
    """Words of `serve` are repositories, beside those of the flag; a word that is none was meant otherwise."""
    (tmp_path / "models").mkdir()
    (tmp_path / "one" / "1").mkdir(parents=True)
    (tmp_path / "one" / "1" / "model.py").touch()
    models = str(tmp_path / "models")
    settings = settings_from(
        [models, "--model-repository=/b", "s3://bucket/models"], {"TRIOTON_MODEL_REPOSITORY": "/c"}
    )
    assert [str(place) for place in settings.model_repository] == [models, "s3://bucket/models", "/b"]
    assert settings_from(["--strict-readiness", models], {}).model_repository == (tmp_path / "models",)
    for word, reason in {
        "absent": "Unexpected argument: absent; repository 'absent' does not exist",
        str(tmp_path / "one"): "is the directory of one model, not a repository: give the directory around it",
    }.items():
        with pytest.raises(UsageError, match=reason):
            settings_from([word], {})


def test_a_directory_in_the_place_of_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert f"to serve what is in it: trioton serve {tmp_path}" in capsys.readouterr().err


def test_wrong_flags_are_found_before_anything_is_loaded() -> None:
    """The settings are whole and right before a server is made of them."""
    with pytest.raises(UsageError):
        settings_from(["--model-repository=/a", "--http-port=8001"], {})


@pytest.mark.parametrize("command", ["run", "config", "doctor"])
def test_commands_that_work_on_folders_take_no_urls(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "s3://bucket/models/m"]) == 1
    assert "'s3://bucket/models/m' is no folder on this machine" in capsys.readouterr().err


def test_ctrl_c_while_it_still_imports_ends_it_as_ever() -> None:
    program = """
import runpy, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "trioton.settings":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
sys.argv = ["trioton", "version"]
runpy.run_module("trioton", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")


def test_imports_are_not_searched_for_garbage_and_what_follows_is() -> None:
    with imports():
        assert not gc.isenabled()
        with imports():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.unfreeze()
