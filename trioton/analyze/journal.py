"""Journal of an analysis: every trial with its outcome, a line each, so that a killed one goes on.

A last line that was cut short by the kill is left out, and written over.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trioton.analyze.search.candidates import Outcome, Trial
from trioton.flags.fields import UsageError

JOURNAL = "journal.jsonl"
_MOST_BYTES = 256 << 20


class Entry(msgspec.Struct, frozen=True, tag_field="kind", tag="trial"):
    candidate: str
    rate: float
    seconds: float
    stage: str
    outcome: Outcome

    @property
    def trial(self) -> Trial:
        return Trial(self.candidate, self.rate, self.seconds, self.stage)


class Preparation(msgspec.Struct, frozen=True, tag_field="kind", tag="preparation"):
    """What came before the first trial: `identity` tells analyses apart, `spent` is how long it took."""

    identity: dict[str, Any]
    spent: float
    times: dict[str, dict[int, float]]
    variations: dict[str, float]
    shape_rules: str = ""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Journal:
    """The file in a folder. `preparation` is None in a new one."""

    path: Path
    preparation: Preparation | None = None
    entries: Sequence[Entry] = ()

    def begin(self, preparation: Preparation) -> None:
        """A new file."""
        self.preparation, self.entries = preparation, ()
        self._write(msgspec.json.encode(preparation), "wb")

    def add(self, trial: Trial, outcome: Outcome) -> None:
        """On the disk when this returns."""
        entry = Entry(trial.candidate, trial.rate, trial.seconds, trial.stage, outcome)
        self._write(msgspec.json.encode(entry), "ab")

    def _write(self, line: bytes, mode: str) -> None:
        with self.path.open(mode) as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())


def open_journal(folder: Path, identity: dict[str, Any]) -> Journal:
    """The journal in a folder, as far as it is whole.

    Raises:
        UsageError: it is that of another analysis, or no journal.
    """
    path = folder / JOURNAL
    if not path.exists():
        return Journal(path)
    if path.stat().st_size > _MOST_BYTES:
        raise UsageError(f"{path} is larger than any journal")
    lines = path.read_bytes().split(b"\n")
    whole, rest = lines[:-1], lines[-1]
    if not whole:
        return Journal(path)
    try:
        preparation = msgspec.json.decode(whole[0], type=Preparation)
        entries = [msgspec.json.decode(line, type=Entry) for line in whole[1:]]
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is no journal of an analysis: {error}") from None
    if preparation.identity != identity:
        different = sorted(
            key
            for key in preparation.identity.keys() | identity.keys()
            if preparation.identity.get(key) != identity.get(key)
        )
        raise UsageError(
            f"{folder} has an analysis with another {', '.join(different)}; give another folder with --output, or "
            "begin anew with --restart"
        )
    if rest:  # cut off by the kill
        os.truncate(path, path.stat().st_size - len(rest))
    return Journal(path, preparation, entries)
