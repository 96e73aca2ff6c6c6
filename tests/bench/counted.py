"""A server whose work can be counted: `python tests/bench/counted.py FILE serve …` runs `trioton serve …`.

Started as a script, it is the server of whatever checkout PYTHONPATH names. The first SIGUSR2 begins to count Python
calls of the main thread, and removes FILE; the second writes it: JSON of `[calls, function]`, the most called first.
What a coroutine does after it has waited counts as one more call of it.

A server that is counted is many times slower. So that a burst is as whole as it would be, nothing is cut short here
because it has taken long; and Trio's clock is slower, too, so that what a server does by itself from time to time is
no more of what is counted than it would be.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from types import CodeType, FrameType
from typing import Any

import trio

# Until when a burst is read, and batches follow one another; the last is of checkouts before the instance's runner.
TIME_LIMITS = (
    ("protocol.reactor.poller", "_MOST_SECONDS"),
    ("protocol.http2.reader", "_MOST_SECONDS"),
    ("actors.instance.runner", "MOST_CALL_SECONDS"),
    ("actors.model_instance", "AT_ONCE_SECONDS"),
)
LONG_SECONDS = 60.0
SLOWNESS = 50.0


class CallCounter:
    """Counts from one `toggle` to the next."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._calls: Counter[CodeType] = Counter()
        self._is_counting = False

    def toggle(self, *_: object) -> None:
        self._is_counting = not self._is_counting
        if self._is_counting:
            self._calls.clear()
            self._file.unlink(missing_ok=True)
            sys.setprofile(self._note)
        else:
            sys.setprofile(None)
            found = [(count, named(code)) for code, count in self._calls.most_common()]
            whole = self._file.with_suffix(".part")
            whole.write_text(json.dumps(found))
            whole.replace(self._file)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._calls[frame.f_code] += 1


class SlowClock(trio.abc.Clock):
    """Trio's own, but `SLOWNESS` times slower."""

    def start_clock(self) -> None:
        self._offset = perf_counter()

    def current_time(self) -> float:
        return (perf_counter() - self._offset) / SLOWNESS

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return (deadline - self.current_time()) * SLOWNESS


def named(code: CodeType) -> str:
    return f"{code.co_qualname} {'/'.join(Path(code.co_filename).parts[-3:])}:{code.co_firstlineno}"


def lift_time_limits() -> None:
    for name, limit in TIME_LIMITS:
        with suppress(ImportError):
            module = importlib.import_module(name)
            if hasattr(module, limit):
                setattr(module, limit, LONG_SECONDS)


def do_without_pidfds() -> None:
    """Where the system has none, as under valgrind."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        with suppress(AttributeError):
            del os.pidfd_open


if __name__ == "__main__":
    del sys.path[0]  # this folder's, which is no package's
    signal.signal(signal.SIGUSR2, CallCounter(Path(sys.argv.pop(1))).toggle)
    trio.run = functools.partial(trio.run, clock=SlowClock())  # type: ignore[assignment]  # generic there
    do_without_pidfds()
    lift_time_limits()
    from trioton.cli import main

    main()
