"""A server that notes how long its loop's turns take: `python -m tests.bench.turns FILE serve …` is `trioton serve …`.
With `--parts` before FILE it notes, too, what the longest of each loop consisted of (`turn_parts`).

A turn is what the loop does between two waits for sockets: callbacks and tasks alike. It is measured in processor time
of the loop's thread, which does not depend on what else the machine does, so a thread that holds the interpreter's lock
meanwhile is not in it. SIGUSR2 writes the turns since the last SIGUSR2 as JSON, see `Turns`.
"""

from __future__ import annotations

import json
import runpy
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import trio

LONG_SECONDS = 0.002
EDGE = "edge"
PARTS = "--parts"


@dataclass(slots=True)
class Turns:
    """The longest turn, in seconds, how many were longer than `LONG_SECONDS`, and of how many."""

    longest: float = 0.0
    long: int = 0
    count: int = 0


class Parts(Protocol):
    """Of the longest turns."""

    def taken(self) -> list[str]:
        """Texts about those since this was called last, the longest first."""

    def resume(self) -> None:
        """What was done since the turn began is none of the server's."""


class TurnClock(trio.abc.Instrument):
    """Of the loop that it is added to."""

    def __init__(self, file: Path, parts: Parts | None = None) -> None:
        self._file = file
        self._parts = parts
        self._turns = Turns()
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        now = time.thread_time()
        seconds, self._began = now - self._began, now
        turns = self._turns
        turns.count += 1
        turns.longest = max(turns.longest, seconds)
        turns.long += seconds > LONG_SECONDS

    def write(self, *_: object) -> None:
        turns, self._turns = self._turns, Turns()
        self._began = time.thread_time()
        if self._parts is not None:
            parts_file(self._file).write_text(json.dumps(self._parts.taken()))
        whole = self._file.with_name(f"{self._file.name}.part")
        whole.write_text(json.dumps(asdict(turns)))
        whole.replace(self._file)
        if self._parts is not None:
            self._parts.resume()


def read(file: Path) -> Turns:
    """What `write` has written. Raises OSError, ValueError."""
    return Turns(**json.loads(file.read_text()))


def parts_file(file: Path) -> Path:
    """Where a server with `--parts` writes texts about its longest turns, before it writes `file`."""
    return file.with_name(f"{file.name}.parts")


def together(each: Iterable[Turns]) -> Turns:
    """Those of several loops."""
    found = list(each)
    longest = max((turns.longest for turns in found), default=0.0)
    return Turns(longest, sum(turns.long for turns in found), sum(turns.count for turns in found))


def edge_file(file: Path, number: int) -> Path:
    """Where an edge process writes its turns, if the server writes to `file`."""
    return file.with_suffix(f".edge{number}")


def _measure_edges(file: Path, *options: str) -> None:
    """Have this server's edge processes start in the same way."""
    from trioton.bound import bound_command
    from trioton.edge_processes import edge

    def measured(command: Sequence[str]) -> list[str]:
        python, _, _, number, *descriptors = command
        return bound_command(
            [python, __file__, *options, str(edge_file(file, int(number))), EDGE, number, *descriptors]
        )

    setattr(edge, "bound_command", measured)  # noqa: B010


if __name__ == "__main__":
    del sys.path[0]  # this folder's, which is no package's; the server is that of PYTHONPATH
    instruments: list[trio.abc.Instrument] = []
    parts: Any = None
    if sys.argv[1] == PARTS:
        del sys.argv[1]
        parts = runpy.run_path(str(Path(__file__).with_name("turn_parts.py")))["TurnParts"]()
        instruments.append(parts)
    file = Path(sys.argv.pop(1))
    clock = TurnClock(file, parts)
    instruments.insert(0, clock)
    signal.signal(signal.SIGUSR2, clock.write)
    run = trio.run

    def run_measured(*arguments: Any, **options: Any) -> Any:
        return run(*arguments, **{**options, "instruments": instruments})

    trio.run = run_measured  # type: ignore[assignment]
    if sys.argv[1] == EDGE:
        from trioton.edge_processes import program

        del sys.argv[1]
        program.main()
    else:
        from trioton import cli

        with suppress(ImportError):  # a server without edge processes
            _measure_edges(file, *([] if parts is None else [PARTS]))
        cli.main()
