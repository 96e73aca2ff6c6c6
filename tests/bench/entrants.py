"""The servers of a run: started in turns, asked for their rows, and what is learnt of them. Above `peers`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from tests.bench.check import check
from tests.bench.contest import Turn
from tests.bench.load import LoadGenerator
from tests.bench.measurement import LoadFailed, Measurement
from tests.bench.memory import Memory, tree_memory
from tests.bench.peers import OURS, OURS_IN_PROCESS, THEIRS, PeerError, Server
from tests.bench.processor import MICROSECONDS, Meter
from tests.bench.verdicts import ServerFacts

TITLES = {OURS: "Trioton, worker", OURS_IN_PROCESS: "Trioton, in process", THEIRS: "NVIDIA Triton"}
# Time for the work that follows start-up to end, before an idle server's memory is read.
SETTLE_SECONDS = 1.0


@dataclass(slots=True)
class Entrant:
    """A server in the contest, and what was learnt of it besides its answers."""

    server: Server
    seconds_to_ready: list[float] = field(default_factory=list)
    version: str = "?"
    idle: Memory = field(default_factory=lambda: Memory(0, 0, 0))
    incidents: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return TITLES[self.server.peer.name]

    def facts(self) -> ServerFacts:
        process = self.server.process
        loaded = tree_memory(process.pid) if process is not None and self.server.is_running() else None
        return ServerFacts(
            title=self.title,
            version=self.version,
            numpy_version=self.server.peer.numpy_version,
            seconds_to_ready=median(self.seconds_to_ready),
            starts=len(self.seconds_to_ready),
            idle=self.idle,
            loaded=loaded,
        )

    def attempt(self, turn: Turn, load: LoadGenerator) -> Measurement:
        """Take a turn, starting the server again if it has ended. Raises LoadFailed."""
        try:
            if not self.server.is_running():
                self.server.start()
            meter = Meter.begin(self.server, turn.row.model)
            measured = load.run(turn.row, self.server.address(turn.row.port))
            return replace(measured, processor=meter.per_request().total * MICROSECONDS)
        except (PeerError, OSError, ValueError) as error:
            raise LoadFailed(str(error).partition("\n")[0]) from error
        finally:
            if ended := self.server.end_description():
                self.incidents.append(f"{self.title} {ended} during {turn.row.label}, round {turn.round + 1}")
                self.server.stop()


def start(entrants: Sequence[Entrant], *, starts: int) -> None:
    """Start the servers in turns to time them; the last start of each is left running, checked and warm.

    Raises PeerError: one does not start, or gives a wrong answer.
    """
    for number in range(starts):
        for entrant in entrants:
            entrant.seconds_to_ready.append(entrant.server.start())
            if number < starts - 1:
                entrant.server.stop()
                continue
            time.sleep(SETTLE_SECONDS)
            if entrant.server.process is not None:
                entrant.idle = tree_memory(entrant.server.process.pid)
            entrant.version = check(entrant.server)
            print(f"{entrant.title} {entrant.version} is ready in {median(entrant.seconds_to_ready):.2f} s", flush=True)
