"""OpenVINO GenAI without a server: `python -m tests.bench.language.engine_alone`, the engine's own loop and no text.

What the server's routes are held against: as many generations at a time, of the same prompt and length, each followed
by another until all have had theirs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CACHE_GB = 1
PROPERTIES = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}


def run(folder: Path, prompt: Sequence[int], new_tokens: int, streams: int, answers: int) -> float:
    """Tokens per second."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", PROPERTIES)
    config = genai.GenerationConfig()
    config.max_new_tokens = new_tokens
    config.ignore_eos = True
    tokens = openvino.Tensor(np.array([prompt], dtype=np.int64))
    left = streams * answers
    handles: list[Any] = []
    number = 0

    def begin() -> None:
        nonlocal number
        handles.append(pipeline.add_request(number, tokens, config))
        number += 1

    def generate(count: int) -> float:
        nonlocal left
        left = count - min(streams, count)
        began = time.perf_counter()
        for _ in range(count - left):
            begin()
        while handles:
            pipeline.step()
            for handle in list(handles):
                while handle.can_read():
                    handle.read()
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    handles.remove(handle)
                    if left:
                        left -= 1
                        begin()
        return time.perf_counter() - began

    generate(streams)
    return streams * answers * new_tokens / generate(streams * answers)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.language.engine_alone", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the model")
    parser.add_argument("--prompt", required=True, help="token ids, with commas between them")
    parser.add_argument("--new-tokens", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--answers", type=int, required=True, help="of each stream")
    options = parser.parse_args()
    prompt = [int(each) for each in options.prompt.split(",")]
    print(json.dumps(run(options.folder, prompt, options.new_tokens, options.streams, options.answers)))


if __name__ == "__main__":
    main()
