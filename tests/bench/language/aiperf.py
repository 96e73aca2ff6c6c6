"""One run of AIPerf, NVIDIA's load generator for language models, as `make clients` installs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.bench.language.models import NEW_TOKENS
from tests.bench.measurement import LoadFailed, last_words
from tests.bench.peers import SOURCE

PROGRAM = SOURCE / ".clients" / "aiperf" / "bin" / "aiperf"
RUN_SECONDS = 240.0


def tokens_per_second(address: str, model: str, tokenizer: Path, streams: int, requests: int, folder: Path) -> float:
    """Of streamed chats, so many at a time. Raises LoadFailed."""
    artifacts = folder / f"aiperf-{address.rpartition(':')[2]}"
    command = [
        *(str(PROGRAM), "profile", "--model", model, "--url", f"http://{address}", "--endpoint-type", "chat"),
        *("--streaming", "--tokenizer", str(tokenizer), "--synthetic-input-tokens-mean", "64"),
        *("--output-tokens-mean", str(NEW_TOKENS), "--extra-inputs", "ignore_eos:true"),
        *("--concurrency", str(streams), "--request-count", str(requests), "--ui-type", "none"),
        *("--use-server-token-count", "--output-artifact-dir", str(artifacts)),
    ]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, cwd=folder, check=False)
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"AIPerf was not ready within {RUN_SECONDS:.0f} s") from None
    reports = list(artifacts.rglob("profile_export_aiperf.json"))
    if ended.returncode or not reports:
        raise LoadFailed(last_words(ended.stdout + ended.stderr) or "AIPerf wrote no report")
    return float(json.loads(reports[0].read_text())["output_token_throughput"]["avg"])
