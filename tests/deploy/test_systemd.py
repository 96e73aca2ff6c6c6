"""The unit for systemd: systemd's own check of it, and what it says to the server."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from trioton.cli import serve_table
from trioton.flags.fields import read_words

UNIT = Path(__file__).parent.parent.parent / "deploy" / "systemd" / "trioton.service"
ANALYZE = shutil.which("systemd-analyze")


def service() -> configparser.SectionProxy:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    unit.read_string(UNIT.read_text())
    return unit["Service"]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed: Debian's package systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With a command that is there: systemd looks for it."""
    assert ANALYZE is not None
    program, _, _ = service()["ExecStart"].partition(" ")
    command = tmp_path / "trioton"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(program, str(command)))
    checked = subprocess.run([ANALYZE, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    told = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    assert (told, checked.returncode) == ([], 0), checked.stderr


def test_the_server_takes_its_command() -> None:
    _, word, *flags = shlex.split(service()["ExecStart"])
    assert word == "serve"
    places, values = read_words(serve_table(), flags)
    assert places == []
    assert values == {"config": Path("/etc/trioton/server.toml")}


def test_systemd_waits_for_the_longest_end() -> None:
    """That of the defaults, with the drain that the page shows."""
    defaults = {row.name: row.default for row in serve_table()}
    exit_timeout = defaults["exit-timeout-secs"]
    assert isinstance(exit_timeout, int)
    assert int(service()["TimeoutStopSec"]) > 10 + exit_timeout
