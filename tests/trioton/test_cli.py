"""The command line: how words become settings, and how usage errors look. No server is started here."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from trioton.cli import ESCAPE_VARIABLE, PIPE_CLOSED, main, settings_from
from trioton.flags import UsageError
from trioton.settings import BackendSetting


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
        "--sagemaker-safe-port-range=8000-9000",
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
        "--sagemaker-safe-port-range",
    ]
    assert (settings.exit_timeout_secs, settings.model_load_thread_count, settings.log_verbose) == (0, 1, 0)
    assert settings.repository_poll_secs == 0.0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--model-repository is required"),
        (["serve"], "--model-repository is required"),
        (["--model-repsitory=/a"], 'Bad option: "--model-repsitory". Did you mean --model-repository?'),
        (["sreve"], "Unexpected argument: sreve; the commands are serve, run, demo, doctor, config and repo"),
        (
            ["--model-repository=/a", "--load-model=x"],
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (
            ["--model-repository=/a", "--allow-sagemaker=true"],
            "--allow-sagemaker is a flag of Triton's that Trioton does not have yet",
        ),
        (
            ["--model-repository=/a", "--allow-vertex-ai"],
            "--allow-vertex-ai is a flag of Triton's that Trioton does not have yet",
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


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"trioton {metadata.version('trioton')}\n"


def test_wrong_flags_are_found_before_anything_is_loaded() -> None:
    """The settings are whole and right before a server is made of them."""
    with pytest.raises(UsageError):
        settings_from(["--model-repository=/a", "--http-port=8001"], {})


@pytest.mark.parametrize("command", ["run", "config", "doctor"])
def test_commands_that_work_on_folders_take_no_urls(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "s3://bucket/models/m"]) == 1
    assert "'s3://bucket/models/m' is no folder on this machine" in capsys.readouterr().err
