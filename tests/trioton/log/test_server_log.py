"""Log lines: both layouts, escapes, which stream, which level."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InvalidArgument, Unsupported
from protocol.server_settings import LogSettings
from trioton.log.formats import VERBATIM, TritonFormatter
from trioton.log.server_log import ServerLog, logging_to, verbose_level
from trioton.settings import Settings

# 2024-02-03 04:05:06.007008 UTC
CREATED = 1706933106.007008


def settings(**values: Any) -> Settings:
    return Settings(model_repository=(Path("/models"),), **values)


def record(level: int, message: str, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("trioton.x", level, "/somewhere/file.py", 12, message, None, None)
    made.created = CREATED
    made.process = 77
    made.__dict__.update(extra)
    return made


@pytest.mark.parametrize(
    ("level", "letter"),
    [
        (verbose_level(2), "I"),
        (logging.INFO, "I"),
        (logging.WARNING, "W"),
        (logging.ERROR, "E"),
        (logging.CRITICAL, "E"),
    ],
)
def test_the_default_layout(level: int, letter: str) -> None:
    """`LMMDD hh:mm:ss.uuuuuu <pid> <file>:<line>] <message>`, in UTC."""
    line = TritonFormatter("default").format(record(level, "hello"))
    assert line == f'{letter}0203 04:05:06.007008 77 file.py:12] "hello"'


def test_the_iso8601_layout() -> None:
    line = TritonFormatter("ISO8601").format(record(logging.WARNING, "hello"))
    assert line == '2024-02-03T04:05:06Z W 77 file.py:12] "hello"'


def test_a_message_cannot_forge_a_line() -> None:
    """What a client sent may hold anything; by default it is quoted and escaped."""
    hostile = 'a"b\\\nE0203 04:05:06.007008 1 x.py:1] "all is lost" \u00fc\x1b \udc80'
    quoted = TritonFormatter("default").format(record(logging.INFO, hostile))
    assert "\n" not in quoted
    assert "\x1b" not in quoted
    assert r"a\"b\\\nE0203" in quoted
    assert "ü" in quoted
    quoted.encode()
    plain = TritonFormatter("default", escape=False).format(record(logging.INFO, "a\nb"))
    assert plain.endswith("] a\nb")


def test_tables_are_shown_as_they_are() -> None:
    line = TritonFormatter("default").format(record(logging.INFO, "+--+\n|  |", **VERBATIM))
    assert line.splitlines()[1:] == ["+--+", "|  |"]


def test_a_traceback_is_indented() -> None:
    """No line of it can be taken for a line of the log."""
    try:
        raise ValueError("E0203 04:05:06.007008\nE0203")
    except ValueError as error:
        made = record(logging.ERROR, "failed", exc_info=(type(error), error, error.__traceback__))
    first, *rest = TritonFormatter("default").format(made).splitlines()
    assert first.endswith('] "failed"')
    assert rest
    assert all(line.startswith("    ") for line in rest)


def said(text: str) -> list[str]:
    """The messages of the lines."""
    return [line.split("] ")[1].strip('"') for line in text.splitlines()]


def say_all(name: str = "trioton.some_module") -> None:
    logger = logging.getLogger(name)
    logger.log(verbose_level(2), "verbose two")
    logger.log(verbose_level(1), "verbose one")
    logger.info("info")
    logger.warning("warning")
    logger.error("error")


@pytest.mark.parametrize(
    ("values", "out", "err"),
    [
        ({}, ["info"], ["warning", "error"]),
        ({"log_verbose": 1}, ["verbose one", "info"], ["warning", "error"]),
        ({"log_verbose": 2}, ["verbose two", "verbose one", "info"], ["warning", "error"]),
        ({"log_info": False}, [], ["warning", "error"]),
        ({"log_info": False, "log_verbose": 1}, ["verbose one"], ["warning", "error"]),
        ({"log_warning": False}, ["info"], ["error"]),
        ({"log_error": False}, ["info"], ["warning"]),
    ],
)
@pytest.mark.parametrize("name", ["trioton.some_module", "backends.python.worker"])
def test_levels_and_streams(
    values: dict[str, Any], out: list[str], err: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Info and verbose messages to stdout, warnings and errors to stderr, each level by its own flag."""
    with logging_to(settings(**values)):
        say_all(name)
    shown = capsys.readouterr()
    assert said(shown.out) == out
    assert said(shown.err) == err


def test_other_packages_speak_only_of_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    """A library's debug messages are not the server's verbose messages."""
    with logging_to(settings(log_verbose=9)):
        say_all("hpack.hpack")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 2


def test_a_log_file_takes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is appended to, and the console stays silent."""
    file = tmp_path / "server.log"
    file.write_text("before\n")
    with logging_to(settings(log_file=str(file))):
        say_all()
    lines = file.read_text().splitlines()
    assert lines[0] == "before"
    assert [line[0] for line in lines[1:]] == ["I", "W", "E"]
    assert f" {os.getpid()} test_server_log.py:" in lines[1]
    assert capsys.readouterr() == ("", "")


def test_logging_is_put_back() -> None:
    """Afterwards the process logs as before."""
    root, ours = logging.getLogger(), logging.getLogger("trioton")
    before = list(root.handlers), ours.level
    with logging_to(settings(log_verbose=3)):
        assert (list(root.handlers), ours.level) != before
    assert (list(root.handlers), ours.level) == before


def test_settings_change_at_run_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Each takes effect at once, and the rest stays as it was."""
    with logging_to(settings(log_warning=False)) as log:
        assert log.settings == LogSettings(log_warning=False)
        log.update(replace(log.settings, log_info=False, log_verbose_level=1))
        say_all()
        log.update(replace(log.settings, log_verbose_level=0, log_warning=True, log_error=False))
        say_all()
        log.update(replace(log.settings, log_info=True, log_verbose_level=2, log_format="ISO8601"))
        assert logging.getLogger("trioton.some_module").isEnabledFor(verbose_level(2))
        logging.getLogger("trioton").info("in the other layout")
        log.update(replace(log.settings, log_verbose_level=0))
        assert not logging.getLogger("trioton.some_module").isEnabledFor(verbose_level(1))
    shown = capsys.readouterr()
    assert said(shown.out) == ["verbose one", "in the other layout"]
    assert said(shown.err) == ["error", "warning"]
    assert re.match(r"\d{4}-\d\d-\d\dT", shown.out.splitlines()[-1])


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"log_format": "xml"}, InvalidArgument, "invalid argument for --log_format, got: xml"),
        ({"log_verbose_level": -1}, InvalidArgument, "log_verbose_level must be from 0 to 4294967295, got: -1"),
        ({"log_verbose_level": 2**32}, InvalidArgument, "log_verbose_level must be from 0 to 4294967295, got: "),
        ({"log_file": "/etc/x"}, Unsupported, "log file location can not be updated through network protocol"),
    ],
)
def test_a_refused_change_changes_nothing(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with logging_to(settings()) as log:
        with pytest.raises(error, match=text):
            log.update(replace(log.settings, log_info=False, **changes))
        assert log.settings == LogSettings()


def test_the_log_file_is_fixed(tmp_path: Path) -> None:
    """It may be said again, as by a client that sends back what it has read."""
    file = tmp_path / "server.log"
    with logging_to(settings(log_file=str(file))) as log:
        assert log.settings.log_file == str(file)
        log.update(replace(log.settings, log_info=False))
        say_all()
    assert said(file.read_text()) == ["warning", "error"]


def test_a_server_in_another_program_leaves_its_log_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """What clients change there is checked and remembered, and no more."""
    log = ServerLog(settings(log_verbose=3))
    before = logging.getLogger("trioton").level
    log.update(replace(log.settings, log_error=False, log_verbose_level=5))
    assert log.settings == LogSettings(log_error=False, log_verbose_level=5)
    assert logging.getLogger("trioton").level == before
    with logging_to(settings()):
        say_all()
    assert said(capsys.readouterr().err) == ["warning", "error"]
