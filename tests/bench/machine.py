"""What it was measured on: the facts without which a figure says nothing. Beside `report`."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    date: str
    processor: str
    cores: int
    kernel: str
    python: str
    load_average: float  # of the minute before, over all cores

    @property
    def is_busy(self) -> bool:
        """Whether others use so much of it that a figure measured now says little."""
        return self.load_average > self.cores / 4


def this_machine() -> Machine:
    return Machine(
        date=datetime.now(UTC).date().isoformat(),
        processor=processor_name(Path("/proc/cpuinfo").read_text()),
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_version()}{', in a shared library' if has_shared_python() else ''}",
        load_average=os.getloadavg()[0],
    )


def has_shared_python() -> bool:
    """Whether the interpreter lies in a shared library, as where it was built so from source; most distributions' does
    not, and is faster by a quarter."""
    return "libpython3" in Path("/proc/self/maps").read_text()


def processor_name(cpuinfo: str) -> str:
    """The processor's name in the text of `/proc/cpuinfo`; not every kernel gives one."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, flags=re.MULTILINE)
    return found[1].strip() if found else "unknown processor"
