"""A plugin of pytest that tells of a failure when it happens, with the end of its report, and what the machine was busy
with then: a run that is killed before it has ended would otherwise say nothing but F.

In a parallel run a test whose time is over ends its process, which is replaced. An exception in the midst of Trio's
loop, as pytest-timeout raises it, leaves the test's processes to the tests that follow, of which many then fail; and it
does not come to a test that waits for a thread, or outside of Python.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key  # pytest's own standard error, which it does not capture

# Of a failed test's report, from its end.
REPORT_LINES = 12
# Of the machine's: a header and three, so long each.
THREADS, LINE = 4, 110


def told(kind: str, name: str, text: str) -> Iterator[str]:
    """A failure in lines; `kind` is a failure of the test itself, or an error before or after it."""
    yield f"{kind.upper()} {name}"
    yield from (f"    {line}" for line in text.splitlines()[-REPORT_LINES:])


def machine() -> Iterator[str]:
    """Its load, its memory, and the threads that have used most of a processor since they began, where it tells."""
    with suppress(OSError, subprocess.SubprocessError):
        free = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
        busiest = subprocess.run(
            ["ps", "-eLo", "pid,lwp,pcpu,rss,args", "--sort=-pcpu"], capture_output=True, text=True, timeout=10
        )
        yield f"load {os.getloadavg()[0]:.1f}, {' '.join(free)}"
        yield from (line[:LINE] for line in busiest.stdout.splitlines()[:THREADS])


class FailuresAtOnce:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            for line in told("failure" if report.when == "call" else "error", report.nodeid, report.longreprtext):
                self._terminal.write_line(line)
            for line in machine():
                self._terminal.write_line(f"    {line}")


@pytest.hookimpl(trylast=True)  # after there is a terminal reporter
def pytest_configure(config: pytest.Config) -> None:
    """The processes of a parallel run have their terminal reporters too, but only the first one's is read."""
    if not hasattr(config, "workerinput"):
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(terminal, pytest.TerminalReporter)
        config.pluginmanager.register(FailuresAtOnce(terminal))


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """A hook of pytest-timeout. Where all threads are is told before the process ends."""
    if not hasattr(item.config, "workerinput"):
        return None
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
    item.cancel_timeout = faulthandler.cancel_dump_traceback_later  # type: ignore[attr-defined]
    return True
