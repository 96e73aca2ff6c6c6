"""A fleet of three under load and faults, for as long as is asked: `python -m tests.attack.fleet_soak --seconds 600`.

Clients send unary requests over both protocols, streams and sequences, and check every answer. Meanwhile replicas are
told to end (SIGTERM), killed (SIGKILL), added and removed, and models are loaded and unloaded. A unary request may fail
only where a replica was killed; a sequence may end only where its replica has ended, and with words that say so. At the
end all replicas must have the same models.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, tensors
from tests.e2e.fleet_process import FleetProcess
from tests.e2e.repository import add_add_sub
from tests.e2e.test_sequence import ZEROS, add_summing

REPLICAS, MOST = 3, 5
SPARE_MODELS = ("spare_a", "spare_b")
# After a kill: until the balancer knows, and the requests that were there have failed.
KILL_SECONDS = 3.0
STEPS = 6
ONES = np.ones((1, 16), np.float32)
STEP = np.ones((1, 2), np.int32)


@dataclass(slots=True)
class Result:
    """`answers` counts what became of requests, `faults` what was done, `broken` says what must not be."""

    answers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    exit_code: int | None = None

    @property
    def is_clean(self) -> bool:
        return not self.broken and self.exit_code == 0


class NewConnectionNeeded(Exception):
    """That of a client has ended with its request."""


class Soak:
    """One run. `_killed_at` is when a replica was killed last."""

    def __init__(self, fleet: FleetProcess, seed: int, note: Callable[[str], None]) -> None:
        self.result = Result()
        self._fleet = fleet
        self._chance = random.Random(seed)
        self._note = note
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._killed_at = -1000.0

    def run(self, seconds: float, pause: float) -> Result:
        works = [
            self._unary("http"),
            self._unary("grpc"),
            self._stream,
            self._sequences("http"),
            self._sequences("grpc"),
        ]
        threads = [threading.Thread(target=self._repeat, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                self._fault()
                self._stop.wait(pause * self._chance.uniform(0.5, 1.5))
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        self._compare_models()
        return self.result

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                work()
            except NewConnectionNeeded:
                continue
            except Exception as error:
                self._break(f"a client has failed: {error!r}")
                time.sleep(0.5)

    def _count(self, what: str) -> None:
        with self._lock:
            self.result.answers[what] += 1

    def _break(self, text: str) -> None:
        with self._lock:
            self.result.broken.append(text[:500])
        self._note(f"BROKEN: {text[:500]}")

    def _fails(self, kind: str, began: float, error: Exception) -> None:
        """A request has failed: it may where a replica was killed meanwhile, or just before."""
        if self._killed_at >= began - KILL_SECONDS:
            self._count(f"{kind}: failed by a kill")
        else:
            self._break(f"{kind}: {error}")

    def _unary(self, protocol: str) -> Callable[[], None]:
        def work() -> None:
            with Client(protocol, self._fleet.addresses[protocol]) as client:
                while not self._stop.is_set():
                    began = time.monotonic()
                    try:
                        outputs = client.infer("add_sub", {"INPUT0": ONES, "INPUT1": ONES})
                    except Exception as error:
                        self._fails(f"unary {protocol}", began, error)
                        return  # over a new connection
                    if not (outputs["OUTPUT0"] == 2).all():
                        self._break(f"unary {protocol}: a wrong answer")
                    self._count(f"unary {protocol}")

        return work

    def _stream(self) -> None:
        """Some requests on one stream, which ends with its replica."""
        answered = threading.Semaphore(0)
        errors: list[Any] = []

        def answer(result: Any, error: Any) -> None:
            errors.extend([error] if error is not None else [])
            answered.release()

        with Client("grpc", self._fleet.addresses["grpc"]) as client:
            client.raw.start_stream(answer)
            for _ in range(20):
                if self._stop.is_set() or errors:
                    break
                client.raw.async_stream_infer("add_sub", tensors(client.api, {"INPUT0": ONES, "INPUT1": ONES}))
                if not answered.acquire(timeout=60):
                    self._break("stream: no answer within 60 s")
                    break
                self._count("stream: request" if not errors else "stream: ended with its replica")
            client.raw.stop_stream(cancel_requests=bool(errors))

    def _sequences(self, protocol: str) -> Callable[[], None]:
        def work() -> None:
            with Client(protocol, self._fleet.addresses[protocol]) as client:
                while not self._stop.is_set():
                    self._sequence(client, protocol)

        return work

    def _sequence(self, client: Client, protocol: str) -> None:
        id = self._chance.randrange(1, 2**62)
        for step in range(1, STEPS + 1):
            began = time.monotonic()
            more: dict[str, Any] = {"sequence_id": id, "sequence_start": step == 1, "sequence_end": step == STEPS}
            try:
                outputs = client.infer("sums", {"INPUT": STEP}, **more)
            except InferenceServerException as error:
                if step > 1 and ("must specify the START flag" in str(error) or "exiting" in str(error).lower()):
                    self._count(f"sequence {protocol}: told that its replica has ended")
                else:
                    self._fails(f"sequence {protocol}, step {step}", began, error)
                return
            except Exception as error:
                self._fails(f"sequence {protocol}, step {step}", began, error)
                raise NewConnectionNeeded from None
            if int(outputs["OUTPUT"][0, 0]) != step:
                self._break(f"sequence {protocol}: step {step} gave {outputs['OUTPUT'][0, 0]}")
                return
            time.sleep(self._chance.uniform(0, 0.2))
        self._count(f"sequence {protocol}: whole")

    def _fault(self) -> None:
        faults = {"sigterm": 3, "sigkill": 2, "scale": 3, "load": 3, "unload": 3}
        (name,) = self._chance.choices([*faults], [*faults.values()])
        serving = self._fleet.replicas()
        if name in ("sigterm", "sigkill") and len(serving) < 2:
            return
        if name == "sigterm":
            self._signal(serving, signal.SIGTERM)
        elif name == "sigkill":
            self._killed_at = time.monotonic()
            self._signal(serving, signal.SIGKILL)
            self._killed_at = time.monotonic()
        elif name == "scale":
            self._fleet.call("POST", "/v2/fleet/scale", {"replicas": self._chance.randint(2, MOST)})
        else:
            model = self._chance.choice(SPARE_MODELS)
            status, answer = self._fleet.call("POST", f"/v2/repository/models/{model}/{name}", {}, service="http")
            if status != 200 and self._killed_at < time.monotonic() - KILL_SECONDS:
                self._break(f"{name} of {model}: {status} {answer}")
        self.result.faults[name] += 1

    def _signal(self, serving: Sequence[Any], number: signal.Signals) -> None:
        victim = self._chance.choice(serving)
        os.kill(int("".join(filter(str.isdigit, victim["process"]))), number)

    def _compare_models(self) -> None:
        """Once there are as many replicas as there should be."""
        self._fleet.call("POST", "/v2/fleet/scale", {"replicas": REPLICAS})
        replicas = self._fleet.wait_for_replicas(REPLICAS)
        found: dict[str, list[str]] = {}
        for replica in replicas:
            with Client("http", replica["http"]) as client:
                index = client.json("get_model_repository_index")
            ready = sorted(each["name"] for each in index if each.get("state") == "READY")
            found.setdefault(",".join(ready), []).append(replica["name"])
        self._note(f"models at the end: {found}")
        if len(found) != 1:
            self._break(f"replicas have different models: {found}")


def soak(seconds: float, seed: int, pause: float, note: Callable[[str], None] = lambda _: None) -> Result:
    """Run it, then end the fleet by SIGTERM."""
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        for name in ("add_sub", *SPARE_MODELS):
            add_add_sub(models / name, versions=(1,))
        idle = f"max_sequence_idle_microseconds: 5000000 {ZEROS}"
        add_summing(models / "sums", id_type="UINT64", batching=f"oldest {{ max_candidate_sequences: 64 }} {idle}")
        flags = ("--model-control-mode=explicit", "--load-model=add_sub", "--load-model=sums")
        bounds = (f"--replicas={REPLICAS}", "--min-replicas=2", f"--max-replicas={MOST}", "--slow-start-secs=2")
        with FleetProcess(models, *flags, *bounds) as fleet:
            fleet.wait_for_replicas(REPLICAS)
            result = Soak(fleet, seed, note).run(seconds, pause)
            fleet.signal(signal.SIGTERM)
            result.exit_code = fleet.wait()
            if not result.is_clean:
                note(fleet.log[-20_000:])
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two faults, about")
    given = parser.parse_args(arguments)
    result = soak(given.seconds, given.seed, given.pause, print)
    print("answers:", dict(sorted(result.answers.items())))
    print("faults:", dict(result.faults))
    print("exit code:", result.exit_code)
    for each in Counter(result.broken).most_common(40):
        print("BROKEN:", each)
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
