"""Finds where somebody speaks while the sound still comes, with Silero's model `voice_activity_stream`, over gRPC.

    python examples/clients/voice_stream.py [--wav FILE ...] [--live] [-u HOST:PORT]

Every recording is a sequence of its own, and all go over one stream at the same time, 32 ms after 32 ms; `--live`
sends them no faster than a microphone would. The server keeps each sequence's memory, so a step is nothing but sound.
Without `--wav` (16 kHz, mono, 16 bit) two callers speak: the same recording made here, for one of them a while later.
"""

from __future__ import annotations

import argparse
import sys
import time
import wave
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from connection import DEFAULT_URLS, show_any_character
from streaming import Stream
from synthetic_speech import RATE, Recording, example_recording
from tritonclient.utils import InferenceServerException
from voice_activity import CHUNK, CONTEXT, ENDS, STARTS, Speech, describe, read_wav, segments

MODEL = "voice_activity_stream"
LATER = 1.5  # seconds after the first caller, the second one speaks
AHEAD = 32  # steps that may be on their way

# Told of each step: the caller, the time in the recording in seconds, and how likely somebody speaks.
Heard = Callable[[str, float, float], None]


def listen(url: str, callers: Mapping[str, Recording], heard: Heard, *, is_live: bool = False) -> dict[str, Speech]:
    """Send all recordings side by side, step by step; answers what was found in each."""
    with VoiceStream(url, list(callers)) as stream:
        longest = max(len(recording.samples) for recording in callers.values()) // CHUNK
        began = time.monotonic()
        for step in range(longest):
            for caller, recording in callers.items():
                steps = len(recording.samples) // CHUNK
                if step < steps:
                    stream.send(caller, sound(recording.samples, step), start=step == 0, end=step == steps - 1)
            stream.receive(heard, at_most=AHEAD)
            if is_live:
                time.sleep(max(0.0, began + (step + 1) * CHUNK / RATE - time.monotonic()))
        stream.receive(heard, at_most=0)
    found = {caller: np.array(stream.probabilities[caller], dtype=np.float32) for caller in callers}
    return {caller: Speech(callers[caller], found[caller], tuple(segments(found[caller]))) for caller in callers}


def sound(samples: np.ndarray, step: int) -> np.ndarray:
    """The samples of a step, and before them the last ones of the step before."""
    start = step * CHUNK
    before = samples[max(0, start - CONTEXT) : start]
    quiet = np.zeros(CONTEXT - len(before), dtype=np.float32)
    return np.concatenate([quiet, before, samples[start : start + CHUNK]])


class VoiceStream:
    """One gRPC stream for several callers, whose ids are text. Failures raise `InferenceServerException`."""

    def __init__(self, url: str, callers: list[str]) -> None:
        self.probabilities: dict[str, list[float]] = {caller: [] for caller in callers}
        # Ids must be new to the server, where a client before us may have been cut off in the middle.
        self._first_id = time.time_ns()
        self._callers = callers
        self._in_flight = 0
        self._stream = Stream(url)

    def __enter__(self) -> VoiceStream:
        self._stream.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.__exit__()

    def send(self, caller: str, samples: np.ndarray, *, start: bool, end: bool) -> None:
        """Does not wait for the answer."""
        self._stream.send(
            MODEL,
            {"input": samples[None, :], "sr": np.array([RATE], dtype=np.int64)},
            request_id=caller,
            sequence_id=self._first_id + self._callers.index(caller),
            sequence_start=start,
            sequence_end=end,
        )
        self._in_flight += 1

    def receive(self, heard: Heard, *, at_most: int) -> None:
        """Take the answers that are there, and wait for more until `at_most` steps are on their way."""
        while self._in_flight > at_most or self._stream.has_answers:
            result = self._stream.receive()
            self._in_flight -= 1
            caller = result.get_response().id
            probability = float(result.as_numpy("output")[0, 0])
            self.probabilities[caller].append(probability)
            heard(caller, len(self.probabilities[caller]) * CHUNK / RATE, probability)


def two_callers() -> dict[str, Recording]:
    recording = example_recording()
    silence = np.zeros(int(LATER * RATE), dtype=np.float32)
    later = tuple((start + LATER, end + LATER) for start, end in recording.phrases)
    return {"first": recording, "second": Recording(np.concatenate([silence, recording.samples]), later)}


class Announcer:
    """Says so as soon as a caller begins to speak."""

    def __init__(self) -> None:
        self._speaking: set[str] = set()

    def __call__(self, caller: str, seconds: float, probability: float) -> None:
        if probability >= STARTS and caller not in self._speaking:
            self._speaking.add(caller)
            print(f"{seconds:5.1f} s  {caller} speaks", flush=True)
        elif probability < ENDS:
            self._speaking.discard(caller)


def main() -> int:
    parser = argparse.ArgumentParser(description="Find where somebody speaks while the sound still comes.")
    parser.add_argument("-u", "--url", default=DEFAULT_URLS["grpc"], help=f"default: {DEFAULT_URLS['grpc']}")
    parser.add_argument("--wav", type=Path, nargs="+", metavar="FILE", help="16 kHz, mono, 16 bit; one for each caller")
    parser.add_argument("--live", action="store_true", help="as fast as a microphone, not as fast as the server")
    arguments = parser.parse_args()
    show_any_character()
    try:
        callers = {str(path): read_wav(path) for path in arguments.wav} if arguments.wav else two_callers()
    except (OSError, EOFError, ValueError, wave.Error) as error:
        print(error, file=sys.stderr)
        return 1
    try:
        found = listen(arguments.url, callers, Announcer(), is_live=arguments.live)
    except (InferenceServerException, OSError) as error:
        print(f"grpc server at {arguments.url}: {error}", file=sys.stderr)
        return 1
    for caller, speech in found.items():
        print(f"{caller}:", *describe(speech), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
