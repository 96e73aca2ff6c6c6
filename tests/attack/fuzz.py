"""Fuzzed inputs by a seed: `python -m tests.attack.fuzz --codecs --inputs 1000000`, or `--sockets`.

Over sockets a server runs in a process of its own, a few connections at once, and now and then a right request says
that everybody else is served.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.codecs import codecs
from tests.attack.faults import Target
from tests.attack.faults import half_close as ask_rightly
from tests.attack.repository import build
from tests.attack.soak import FLAGS
from tests.attack.sockets import Attack, attack, attacks
from tests.attack.sums import make_sums
from tests.e2e.server_process import ServerProcess

# Small, so that an input with long times or counts is over soon.
FUZZ_FLAGS = (*FLAGS, "--http-idle-timeout=5000", "--http-header-timeout=5000", "--http-body-timeout=5000")
_RIGHT_EVERY = 200
_MOST_FAILURES = 20


@dataclass(slots=True)
class Result:
    inputs: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    log: str = ""
    exit_code: int | None = 0

    @property
    def is_clean(self) -> bool:
        return not self.failures and not self.exit_code and "Traceback" not in self.log


def fuzz_codecs(inputs: int, seed: int, names: Sequence[str] = ()) -> Result:
    """`inputs` for each codec. What it raises and may not is a failure, with the seed that leads there."""
    result = Result()
    for name, codec in codecs().items():
        if names and name not in names:
            continue
        for number in range(inputs):
            chance = random.Random(f"{name} {seed} {number}")
            try:
                codec(chance)
            except Exception:
                result.failures.append(f"{name}, seed {seed}, input {number}: {traceback.format_exc()}")
                if len(result.failures) >= _MOST_FAILURES:
                    return result
            result.inputs[name] += 1
    return result


def fuzz_sockets(inputs: int, seed: int, names: Sequence[str] = (), threads: int = 3) -> Result:
    """`inputs` for each kind of connection."""
    result = Result()
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(*FUZZ_FLAGS, repository=build(Path(folder) / "models")) as server,
    ):
        places: dict[str, tuple[str, int]] = {}
        for edge in ("http", "grpc"):
            host, _, port = server.addresses[edge].rpartition(":")
            places[edge] = host, int(port)
        target = Target(places["http"], server.addresses["grpc"], make_sums("sum", seed), server.descendants)
        for name, kind in attacks().items():
            if names and name not in names:
                continue
            _share(
                threads,
                lambda number, name=name, kind=kind: _attack(  # type: ignore[misc]
                    target, places[kind.edge], name, kind, inputs // threads, f"{name} {seed} {number}", result
                ),
            )
        server.signal(15)  # type: ignore[arg-type]  # SIGTERM
        result.exit_code = server.wait()
        result.log = server.log
    return result


def _attack(
    target: Target, address: tuple[str, int], name: str, kind: Attack, inputs: int, seed: str, result: Result
) -> None:
    done = connections = 0
    while done < inputs and len(result.failures) < _MOST_FAILURES:
        chance = random.Random(f"{seed} {connections}")
        connections += 1
        try:
            count = attack(address, kind, chance)
            if connections % _RIGHT_EVERY == 0:
                ask_rightly(target, chance)
        except Exception as error:
            result.failures.append(f"{seed} {connections - 1}: {error!r}")
            count = 1
        done += count
        result.inputs[name] += count


def _share(count: int, run: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--codecs", action="store_true")
    parser.add_argument("--sockets", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], choices=[*codecs(), *attacks()])
    given = parser.parse_args(arguments)
    results = []
    if given.codecs or not given.sockets:
        results.append(fuzz_codecs(given.inputs, given.seed, given.only))
    if given.sockets or not given.codecs:
        results.append(fuzz_sockets(given.inputs, given.seed, given.only))
    for result in results:
        print(dict(result.inputs), "exit code", result.exit_code)
        for failure in result.failures:
            print("FAILURE:", failure[:3000])
        if not result.is_clean and result.log:
            print(result.log[-10_000:])
    return 0 if all(result.is_clean for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
