"""Small requests beside the streams: `python -m tests.bench.language.small_requests`, a process of its own.

One after the other to `add_sub`, with a pause between them, for so many seconds; their times are printed as JSON.
"""

from __future__ import annotations

import http.client
import json
import sys
import time

PAUSE_SECONDS = 0.005
MODEL = "add_sub"
_BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "shape": [1, 16], "datatype": "FP32", "data": [1.0] * 16} for name in ("INPUT0", "INPUT1")
        ]
    }
)


def run(host: str, port: int, seconds: float) -> list[float]:
    """Seconds that each took."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    took: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        connection.request("POST", f"/v2/models/{MODEL}/infer", _BODY)
        answer = connection.getresponse()
        body = answer.read()
        took.append(time.perf_counter() - began)
        if answer.status != 200:
            raise ValueError(body.decode(errors="replace"))
        time.sleep(PAUSE_SECONDS)
    connection.close()
    return took


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    print(json.dumps(run(host, int(port), float(sys.argv[2]))))


if __name__ == "__main__":
    main()
