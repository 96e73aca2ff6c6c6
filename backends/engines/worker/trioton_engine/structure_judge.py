"""Judge of structures: decides which of those that clients send the engine gets.

A short expression can take its compiler hours, or all memory. So each that was not seen before is compiled by a process
that may be killed, and then, for the engine's pipelines, by a thread that does not hold the interpreter's lock. The
engine asks, goes on with what it has, and hears of it later.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import OrderedDict, deque
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from .engine import Refused, Structure
from .structure_process import StructureProcess, TooCostly
from .structures import StructureCompiler, reason_of

_KNOWN = 4096  # verdicts that are remembered
_LONGEST = 1 << 20  # characters
_MOST_MEMORY = 1 << 30  # bytes that one may take to be compiled


class Verdict(NamedTuple):
    """What is wrong with a structure, empty where the engine may have it, and whether that is the client's mistake."""

    error: str = ""
    is_refused: bool = False


class StructureJudge:
    """Structures are judged one after another, in the order in which they were asked for.

    Attributes:
        descriptor: readable when there is something to hear.
        kept_bytes: about what the tokenizer keeps of what was compiled for it.
    """

    def __init__(self, folder: str, tokenizer: Any, seconds: float) -> None:
        """`seconds` is what compiling one may take."""
        self.kept_bytes = 0
        self._seconds = seconds
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._wanted: dict[bytes, Structure] = {}
        self._asked: SimpleQueue[bytes] = SimpleQueue()
        self._decided: deque[_Decision] = deque()
        self._process = StructureProcess(folder, _MOST_MEMORY)
        self._folder = folder
        self._compiler = StructureCompiler(folder, tokenizer)
        self.descriptor, self._told = os.pipe()
        for each in (self.descriptor, self._told):
            os.set_blocking(each, False)
        Thread(target=self._run, name="structures", daemon=True).start()

    def verdict(self, structure: Structure) -> Verdict | None:
        """None where it was not judged yet, or that was forgotten."""
        key = _key(structure)
        if (found := self._known.get(key)) is not None:
            self._known.move_to_end(key)
        return found

    def ask(self, structure: Structure) -> None:
        """Have one judged. Raises Refused for one that is too long."""
        if len(structure.value) > _LONGEST:
            raise Refused(
                f"structured_outputs.{structure.kind} has {len(structure.value)} characters, at most {_LONGEST}"
            )
        key = _key(structure)
        if key not in self._wanted:
            self._wanted[key] = structure
            self._asked.put(key)

    def forget(self, structure: Structure) -> None:
        """Nobody waits for it any more."""
        self._wanted.pop(_key(structure), None)

    def hear(self) -> Iterator[tuple[Structure, Verdict]]:
        """What was decided since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 1 << 12)
        while self._decided:
            decision = self._decided.popleft()
            self.kept_bytes += decision.taken
            if decision.lasts:
                self._known[decision.key] = decision.verdict
                if len(self._known) > _KNOWN:
                    self._known.popitem(last=False)
            if (structure := self._wanted.pop(decision.key, None)) is not None:
                yield structure, decision.verdict

    def renew(self, tokenizer: Any) -> None:
        """Compile for another tokenizer from now on, which has nothing yet."""
        self._compiler = StructureCompiler(self._folder, tokenizer)
        self._known.clear()
        self.kept_bytes = 0

    def close(self) -> None:
        """End the process. The thread ends with the engine's process."""
        self._process.stop()

    def _run(self) -> None:
        while True:
            key = self._asked.get()
            structure = self._wanted.get(key)
            if structure is None:
                continue
            self._decided.append(self._decision(key, structure))
            with contextlib.suppress(BlockingIOError):  # then it is readable anyway
                os.write(self._told, b".")

    def _decision(self, key: bytes, structure: Structure) -> _Decision:
        try:
            taken = self._process.compile(structure, self._seconds)
            self._compiler.compile_unlocked(structure)
        except Refused as error:
            return _Decision(key, Verdict(str(error), is_refused=True), lasts=True)
        except TooCostly as error:
            return _Decision(key, Verdict(str(error), is_refused=True))
        except Exception as error:
            return _Decision(key, Verdict(reason_of(error)))
        return _Decision(key, Verdict(), lasts=True, taken=taken)


class _Decision(NamedTuple):
    """One that does not last is not remembered: another time it may be another one. `taken` are bytes."""

    key: bytes
    verdict: Verdict
    lasts: bool = False
    taken: int = 0


def _key(structure: Structure) -> bytes:
    return hashlib.sha256(f"{structure.kind}:{structure.value}".encode()).digest()
