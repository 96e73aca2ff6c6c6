"""A long mixed load with faults: `python -m tests.attack.soak --requests 10000000 --seconds 1800`.

A server, processes that send requests and check every answer, and threads that do what goes wrong around a server. At
the end nothing may be lost, wrong or grown: memory, descriptors and threads are noted before and after, in idle.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.faults import FAULTS, Broken, Target
from tests.attack.repository import build
from tests.attack.sums import make_sums
from tests.e2e.server_process import ServerProcess

# kind of connection, model, connections, share of the requests
LOADS = (
    ("http1", "sum", 8, 0.30),
    ("http1", "sum_in_loop", 4, 0.25),
    ("grpc", "sum", 4, 0.25),
    ("grpc", "sum_in_loop", 2, 0.15),
    ("http1", "chain", 2, 0.05),
)
FLAGS = (
    "--backend-config=python,allow-in-process=true",
    "--model-control-mode=explicit",
    "--load-model=*",
)
SETTLING_SECONDS = 5.0


@dataclass(slots=True)
class Result:
    """`answers` counts requests by what became of them; `faults` those that were done, by name."""

    answers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    tracebacks: int = 0
    exit_code: int | None = None

    @property
    def is_clean(self) -> bool:
        return not (self.broken or self.tracebacks or self.answers["lost"] or self.answers["wrong"] or self.exit_code)


def soak(
    *,
    requests: int,
    seconds: float,
    seed: int,
    fault_threads: int = 2,
    faults: Sequence[str] = tuple(FAULTS),
    pause: float = 0.0,
    note: Callable[[str], None] = lambda _: None,
) -> Result:
    """Run until `requests` have been answered, or for `seconds`; then end the server by SIGTERM."""
    result = Result()
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(*FLAGS, repository=build(Path(folder) / "models")) as server,
    ):
        host, _, port = server.addresses["http"].rpartition(":")
        target = Target((host, int(port)), server.addresses["grpc"], make_sums("sum", seed), server.descendants)
        _warm_up(server, seed)
        time.sleep(SETTLING_SECONDS)
        result.before = sizes(server)
        note(f"before: {result.before}")
        stop = threading.Event()
        threads = [
            threading.Thread(target=_do_faults, args=(target, seed + number, faults, pause, stop, result))
            for number in range(fault_threads)
        ]
        for thread in threads:
            thread.start()
        try:
            _load(server, requests, seconds, seed, result, note)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        time.sleep(SETTLING_SECONDS)
        result.after = sizes(server)
        server.signal(15)  # type: ignore[arg-type]  # SIGTERM
        result.exit_code = server.wait()
        result.tracebacks = server.log.count("Traceback (most recent call last)")
        if not result.is_clean:
            note(server.log[-20_000:])
    return result


def _load(
    server: ServerProcess, requests: int, seconds: float, seed: int, result: Result, note: Callable[[str], None]
) -> None:
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.attack.load", kind, server.addresses[kind[:4]], model),
                *(f"--requests={int(requests * share)}", f"--connections={connections}"),
                *(f"--seconds={seconds}", f"--seed={seed}"),
            ],
            stdout=subprocess.PIPE,
        )
        for kind, model, connections, share in LOADS
    ]
    for process, (kind, model, *_) in zip(running, LOADS, strict=True):
        output, _ = process.communicate()
        if process.returncode:
            result.broken.append(f"the load {kind} {model} ended with {process.returncode}")
            continue
        tally = json.loads(output)
        wrong = tally.pop("wrong")
        note(f"{kind} {model}: {tally}, {len(wrong)} wrong; {sizes(server)}")
        result.answers.update(tally)
        result.answers["wrong"] += len(wrong)
        result.broken += [f"{kind} {model}: {each}" for each in wrong]


def _do_faults(
    target: Target, seed: int, names: Sequence[str], pause: float, stop: threading.Event, result: Result
) -> None:
    chance = random.Random(seed)
    weights = [FAULTS[name][1] for name in names]
    while not stop.is_set():
        (name,) = chance.choices(names, weights)
        try:
            FAULTS[name][0](target, chance)
        except Broken as error:
            result.broken.append(f"{name}: {error}")
        except Exception as error:
            result.broken.append(f"{name} could not be done: {error!r}")
            if len(result.broken) > 1000:
                return
        result.faults[name] += 1
        stop.wait(pause)


def _warm_up(server: ServerProcess, seed: int) -> None:
    """So that what is kept for good is there before the first look."""
    result = Result()
    _load(server, 2_000, 60, seed, result, lambda _: None)


def sizes(server: ServerProcess) -> dict[str, int]:
    """Of the server: its resident memory and that of its workers in KiB, its descriptors and threads."""
    try:
        status = Path(f"/proc/{server.pid}/status").read_text()
        return {
            "rss": _kib(status, "VmRSS"),
            "shmem": _kib(status, "RssShmem"),
            "workers_rss": sum(_rss(pid) for pid in server.descendants()),
            "descriptors": len(list(Path(f"/proc/{server.pid}/fd").iterdir())),
            "threads": _kib(status, "Threads"),
            "children": len(server.descendants()),
        }
    except OSError:
        return {}


def _rss(pid: int) -> int:
    try:
        return _kib(Path(f"/proc/{pid}/status").read_text(), "VmRSS")
    except (OSError, StopIteration):
        return 0


def _kib(status: str, name: str) -> int:
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault-threads", type=int, default=2)
    parser.add_argument("--faults", nargs="*", default=list(FAULTS), choices=list(FAULTS))
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two faults of a thread")
    given = parser.parse_args(arguments)
    result = soak(
        requests=given.requests,
        seconds=given.seconds,
        seed=given.seed,
        fault_threads=given.fault_threads,
        faults=given.faults,
        pause=given.pause,
        note=print,
    )
    print("answers:", dict(result.answers))
    print("faults:", dict(result.faults))
    print("before:", result.before)
    print("after: ", result.after)
    print("tracebacks in the log:", result.tracebacks, "exit code:", result.exit_code)
    for each in Counter(text[:400] for text in result.broken).most_common(40):
        print("BROKEN:", each)
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
