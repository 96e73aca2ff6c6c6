"""The configuration file of `trioton serve`: values of every kind, what wins over it, and what it cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioton.cli import serve_table, settings_from
from trioton.config_file import CONFIG_FLAG, read_config_file
from trioton.flags.fields import UsageError


def write(folder: Path, text: str) -> Path:
    file = folder / "server.toml"
    file.write_text(text)
    return file


def test_values_of_every_kind(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        f'model-repository = ["{tmp_path}/a", "{tmp_path}/b"]\n'
        'http-port = 9000\nallow_grpc = false\nid = "mine"\nrepository-poll-secs = 1.5\nload-model = "m"\n'
        'model-control-mode = "explicit"\nconsole = true\n',
    )
    settings = settings_from([f"--config={file}"], {})
    assert settings.model_repository == (tmp_path / "a", tmp_path / "b")
    assert (settings.http_port, settings.allow_grpc, settings.id, settings.repository_poll_secs) == (
        9000,
        False,
        "mine",
        1.5,
    )
    assert (settings.load_model, settings.console) == (("m",), True)


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(tmp_path: Path) -> None:
    file = write(tmp_path, 'model-repository = "/a"\nhttp-port = 1\ngrpc-port = 1\nmetrics-port = 3\n')
    environment = {"TRIOTON_CONFIG": str(file), "TRIOTON_HTTP_PORT": "4", "TRIOTON_GRPC_PORT": "5"}
    settings = settings_from(["--http-port=6", "--model-repository=/b"], environment)
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (6, 5, 3)
    assert settings.model_repository == (Path("/b"),)
    other = write(tmp_path, 'model-repository = "/c"\n')
    assert settings_from(["--config", str(other)], {}).model_repository == (Path("/c"),)


def test_every_flag_can_be_in_a_file(tmp_path: Path) -> None:
    """By its name, and with its own reader: what that refuses is told as ever."""
    for row in serve_table():
        if row.name == CONFIG_FLAG:
            continue
        file = write(tmp_path, f'{row.name} = "\\u0000"\n')
        told = ""
        try:
            assert list(read_config_file(serve_table(), file)) == [row.field_name]
        except UsageError as error:
            told = str(error)
        assert not told or f"{file}:1: {row.name}: " in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('# a\nhttp-port = "x"\n', ":2: http-port: expected a whole number, got 'x'"),
        ("http-port = 70000\n", ":1: http-port: expected a whole number from 0 to 65535, got '70000'"),
        ("http-prot = 1\n", ":1: http-prot: expected the name of a flag .*; did you mean http-port?"),
        ("[http]\nport = 1\n", ":1: http: expected the name of a flag"),
        ("[http-port]\nport = 1\n", ":1: http-port: expected a text, a number or a Boolean, got a table"),
        ("http-port = [1, 2]\n", ":1: http-port: expected one value, got a list of 2"),
        ("http-port = 2026-01-01\n", ":1: http-port: expected a text, a number or a Boolean, got date"),
        ("http-port = 1\nhttp_port = 2\n", ":2: http_port: --http-port is set above, too"),
        ('config = "other.toml"\n', ":1: config: expected the name of a flag"),
        ("http-port\n", r"server\.toml: expected TOML, such as .*line 1"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told.replace("?", r"\?")):
        settings_from([f"--config={write(tmp_path, text)}"], {})


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    file = write(tmp_path, 'http-restricted-api = "nonsense:key=hidden"\n')
    with pytest.raises(UsageError, match="http-restricted-api: ") as raised:
        settings_from([f"--config={file}"], {})
    assert "hidden" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--config: cannot read .*: No such file or directory"):
        settings_from([f"--config={tmp_path / 'absent'}"], {})
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="expected TOML"):
        settings_from([f"--config={tmp_path / 'bytes'}"], {})
