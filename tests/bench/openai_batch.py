"""A batch of many lines by OpenAI's own client: `python -m tests.bench.openai_batch`.

Says how fast a file is taken and its lines are answered, what a line costs the server's own process, and how much
memory that has needed for it all; and checks that each line was answered once, in order.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai

from tests.bench.measurement import LoadFailed
from tests.bench.peers import PeerError, Server, our_server
from tests.bench.prepare import DEFAULT_FOLDER
from tests.bench.table import table
from tests.e2e.openai.repository import add_python

LINES = 50_000
ENDED = ("completed", "failed", "expired", "cancelled")
URL = "/v1/completions"
POLL_SECONDS, WATCH_SECONDS = 0.25, 0.05

_TICKS = os.sysconf("SC_CLK_TCK")

# Answers at once, what it was asked.
_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("text_output", pb_utils.get_input_tensor_by_name(each, "text_input").as_numpy())]
            )
            for each in requests
        ]
"""
_CONFIG = """
max_batch_size: 64
dynamic_batching { }
input [ { name: "text_input", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "text_output", data_type: TYPE_STRING, dims: [ 1 ] } ]
"""


@dataclass(slots=True)
class Found:
    """`processor_seconds` are those of the server's own process, while the lines were answered."""

    lines: int
    byte_size: int
    upload_seconds: float
    read_seconds: float
    seconds: float
    processor_seconds: float
    resident_before: int
    resident_most: int


def write_input(path: Path, lines: int) -> None:
    with path.open("w") as file:
        for number in range(lines):
            body = {"model": "echo", "prompt": f"line {number}"}
            line = {"custom_id": f"line {number}", "method": "POST", "url": URL, "body": body}
            file.write(json.dumps(line) + "\n")


def measure(lines: int, log: Path) -> Found:
    """Raises PeerError, LoadFailed, OSError."""
    with tempfile.TemporaryDirectory(prefix="bench-batch-") as name:
        folder = Path(name)
        add_python(folder / "models", "echo", _MODEL, _CONFIG)
        write_input(folder / "in.jsonl", lines)
        peer = our_server()
        peer = replace(peer, command=(*peer.command, f"--jobs-store={folder / 'jobs'}"), models=folder / "models")
        server = Server(peer, log)
        try:
            server.start()
            return _measured(server, folder / "in.jsonl", lines)
        finally:
            server.stop()


def _measured(server: Server, path: Path, lines: int) -> Found:
    assert server.process is not None
    pid = server.process.pid
    before = _resident(pid)
    with (
        openai.OpenAI(base_url=f"http://{server.address('http')}/v1", api_key="none", max_retries=0) as client,
        _most_resident(pid) as most,
    ):
        began = time.perf_counter()
        with path.open("rb") as source:
            file = client.files.create(file=source, purpose="batch")
        uploaded, processor = time.perf_counter(), _processor_seconds(pid)
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        read = 0.0
        while batch.status not in ENDED:
            time.sleep(POLL_SECONDS)
            batch = client.batches.retrieve(batch.id)
            if not read and batch.status != "validating":
                read = time.perf_counter()
        seconds, spent = time.perf_counter() - uploaded, _processor_seconds(pid) - processor
        _check(client, batch, lines)
    return Found(lines, file.bytes, uploaded - began, read - uploaded, seconds, spent, before, max(most))


def _check(client: openai.OpenAI, batch: openai.types.Batch, lines: int) -> None:
    if batch.status != "completed" or batch.output_file_id is None or batch.error_file_id is not None:
        raise LoadFailed(f"the batch is {batch.status}: {batch.errors}, {batch.request_counts}")
    content = client.files.content(batch.output_file_id)
    for number, text in enumerate(content.iter_lines()):
        line: Any = json.loads(text)
        answered = line["response"]["body"]["choices"][0]["text"]
        if (line["custom_id"], answered) != (f"line {number}", f"line {number}"):
            raise LoadFailed(f"line {number} of the output is that of '{line['custom_id']}', with '{answered}'")
    if number + 1 != lines:
        raise LoadFailed(f"the output has {number + 1} lines, of {lines}")


@contextmanager
def _most_resident(pid: int) -> Iterator[list[int]]:
    """What a process has held, looked at again and again."""
    found, over = [_resident(pid)], threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            found[0] = max(found[0], _resident(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def report(found: Found) -> str:
    mebibyte = 1 << 20
    cost = found.processor_seconds / found.lines * 1e6
    rows = [
        ["upload, MiB per second", f"{found.byte_size / mebibyte / found.upload_seconds:,.0f}"],
        ["until all lines were read and were a job, seconds", f"{found.read_seconds:.2f}"],
        ["lines per second, until the output was written", f"{found.lines / found.seconds:,.0f}"],
        [
            "processor time of the server's own process, µs a line",
            f"{cost:,.0f}",
        ],
        ["its memory before, MiB", f"{found.resident_before / mebibyte:,.0f}"],
        ["and the most, MiB", f"{found.resident_most / mebibyte:,.0f}"],
    ]
    return table([f"a batch of {found.lines} lines, {found.byte_size / mebibyte:.1f} MiB", ""], rows, text_columns=1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure a batch of many lines by OpenAI's own client.")
    parser.add_argument("--lines", type=int, default=LINES, help="of the batch (default %(default)s)")
    options = parser.parse_args(arguments)
    DEFAULT_FOLDER.mkdir(exist_ok=True)
    try:
        print(report(measure(options.lines, DEFAULT_FOLDER / "batch.log")))
    except (LoadFailed, PeerError, OSError, openai.OpenAIError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
