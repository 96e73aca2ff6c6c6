"""A Prometheus that scrapes a server every second, with the rules of the examples."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "observability"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
IS_INSTALLED = PROMETHEUS is not None and PROMTOOL is not None
WHY_NOT = "needs Debian's prometheus: apt-get install prometheus"
PATIENCE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Raises what Prometheus finds wrong with it."""
        given = urllib.parse.urlencode({"query": expression})
        try:
            return self._get(f"query?{given}")["result"]  # type: ignore[no-any-return]  # of JSON
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None

    def firing(self) -> set[tuple[str, str]]:
        """The alerts that fire, each with its model."""
        alerts = self._get("alerts")["alerts"]
        return {
            (each["labels"]["alertname"], each["labels"].get("model", ""))
            for each in alerts
            if each["state"] == "firing"
        }

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found


def wait_until(condition: Callable[[], object]) -> bool:
    """Whether it comes true in time; what cannot be asked yet is not true."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            if condition():
                return True
        except OSError:
            pass
        time.sleep(0.3)
    return False


@contextmanager
def prometheus_of(target: str, folder: Path) -> Iterator[Prometheus]:
    """With the example's configuration, but that it looks every second, and alerts wait for nothing."""
    assert PROMETHEUS is not None
    rules = re.sub(r"for: \d+m", "for: 0s", (FOLDER / "rules.yml").read_text())
    config = (FOLDER / "prometheus.yml").read_text().replace("localhost:8002", target).replace("15s", "1s")
    (folder / "rules.yml").write_text(rules)
    (folder / "prometheus.yml").write_text(config)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        PROMETHEUS,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            prometheus = Prometheus(f"http://{address}")
            assert wait_until(lambda: prometheus.query("up") != []), (folder / "log").read_text()
            yield prometheus
        finally:
            process.kill()
