"""`wrk` for requests in JSON: its script, its flags, and what it prints. Consulted by `load`.

`perf_analyzer` makes and reads JSON itself, and spends more on that than a server does; `wrk` sends bytes that are made
before, and looks at the status alone. It is a package of the system: `apt-get install wrk` on Debian.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np

from tests.bench.measurement import LoadFailed, Measurement
from tests.bench.rows import Row

ADVICE = "there is no wrk on PATH; on Debian, as root: apt-get install wrk"
# Sent one after the other, since a server might remember the one request that it gets.
BODIES = 64
INPUTS, ELEMENTS = ("INPUT0", "INPUT1"), 16
MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000}
SCRIPT = """\
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local bodies = {{ {bodies} }}
local requests, last = {{}}, 0
init = function(arguments)
  for index, body in ipairs(bodies) do requests[index] = wrk.format(nil, nil, nil, body) end
end
request = function()
  last = last % #requests + 1
  return requests[last]
end
"""


def script() -> str:
    """The Lua program that sends requests to `add_sub`, all tensors as JSON."""
    return SCRIPT.format(bodies=", ".join(f"[=[{body(seed)}]=]" for seed in range(BODIES)))


def body(seed: int) -> str:
    generator = np.random.default_rng(seed)
    tensors = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": [1, ELEMENTS],
            "data": [round(value, 6) for value in generator.random(ELEMENTS).tolist()],
        }
        for name in INPUTS
    ]
    return json.dumps({"inputs": tensors})


def arguments(row: Row, address: str, seconds: float, script: Path) -> list[str]:
    """For one run; it knows whole seconds."""
    flags = ["--latency", "--threads", "1", "--connections", str(row.concurrency)]
    flags += ["--duration", f"{math.ceil(seconds)}s", "--script", str(script)]
    return [*flags, f"http://{address}/v2/models/{row.model}/infer"]


def parse_output(text: str) -> Measurement:
    """The figures that it prints. Raises LoadFailed where they are not there, or where a request failed."""
    if failed := re.search(r"^\s*(Non-2xx or 3xx responses|Socket errors): (.+)$", text, flags=re.MULTILINE):
        raise LoadFailed(f"{failed[1]}: {failed[2]}")
    rate = re.search(r"^Requests/sec:\s+([\d.]+)$", text, flags=re.MULTILINE)
    p50, p99 = _percentile(text, 50), _percentile(text, 99)
    if rate is None or p50 is None or p99 is None:
        raise LoadFailed("wrk printed no figures")
    if float(rate[1]) <= 0:
        raise LoadFailed("no request was answered")
    return Measurement(float(rate[1]), p50, p99)


def _percentile(text: str, percent: int) -> float | None:
    found = re.search(rf"^\s+{percent}%\s+([\d.]+)(us|ms|s|m)$", text, flags=re.MULTILINE)
    return float(found[1]) * MICROSECONDS[found[2]] if found else None
