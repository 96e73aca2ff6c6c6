"""Finds where somebody speaks, with Silero's model `voice_activity`.

    python examples/clients/voice_activity.py [--wav FILE] [-i grpc] [-u HOST:PORT]

Without `--wav` (16 kHz, mono, 16 bit) it makes a recording of its own: two voices, a bell, rain.
The model hears 32 ms at a time and remembers what came before: its memory is a tensor that goes out with one answer
and back in with the next request, so that any instance of the model may take any step.
"""

from __future__ import annotations

import math
import sys
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from connection import Server, command_line, run
from synthetic_speech import RATE, Recording, example_recording

CHUNK = 512  # samples per step
CONTEXT = 64  # samples of the step before, which the model hears again
STARTS = 0.5  # speech starts at this probability …
ENDS = 0.35  # … and ends below this one, if it stays there
SHORTEST_PAUSE = 0.1  # seconds
SHORTEST_SPEECH = 0.25  # seconds


@dataclass(frozen=True)
class Speech:
    recording: Recording
    probabilities: np.ndarray  # FP32, one per step
    segments: tuple[tuple[float, float], ...]  # seconds


def listen(server: Server, recording: Recording) -> Speech:
    """Send the recording step by step."""
    probabilities = np.array(list(speech_probabilities(server, recording.samples)), dtype=np.float32)
    return Speech(recording, probabilities, tuple(segments(probabilities)))


def speech_probabilities(server: Server, samples: np.ndarray) -> Iterator[float]:
    """The probability of speech in each full step of FP32 samples between -1 and 1."""
    rate = np.array([RATE], dtype=np.int64)
    state = np.zeros((2, 1, 128), dtype=np.float32)
    heard = np.concatenate([np.zeros(CONTEXT, dtype=np.float32), samples])
    for start in range(0, len(samples) - CHUNK + 1, CHUNK):
        inputs = {"input": heard[None, start : start + CONTEXT + CHUNK], "state": state, "sr": rate}
        probability, state = server.infer("voice_activity", inputs, ["output", "stateN"])
        yield float(probability[0, 0])


def segments(probabilities: np.ndarray) -> Iterator[tuple[float, float]]:
    """From when to when, in seconds, somebody speaks. Short pauses belong to speech; short noises are none."""
    step = CHUNK / RATE
    silence = [0.0] * math.ceil(SHORTEST_PAUSE / step)  # follows the recording
    start: float | None = None
    silent_since: float | None = None
    for index, probability in enumerate([*probabilities, *silence]):
        now = index * step
        if probability >= STARTS:
            start = now if start is None else start
            silent_since = None
        elif start is not None and probability < ENDS:
            silent_since = now if silent_since is None else silent_since
            if now + step - silent_since >= SHORTEST_PAUSE:
                if silent_since - start >= SHORTEST_SPEECH:
                    yield start, silent_since
                start = silent_since = None


def read_wav(path: Path) -> Recording:
    """Raises ValueError where the file is not 16 kHz, mono, 16 bit."""
    with wave.open(str(path)) as file:
        form = (file.getframerate(), file.getnchannels(), 8 * file.getsampwidth())
        if form != (RATE, 1, 16):
            raise ValueError(f"{path}: expected {RATE} Hz, 1 channel, 16 bit; got {form[0]} Hz, {form[1]}, {form[2]}")
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    return Recording((samples / 32768).astype(np.float32), phrases=())


def describe(speech: Speech) -> list[str]:
    seconds = len(speech.recording.samples) / RATE
    found = ", ".join(f"{start:.1f} to {end:.1f} s" for start, end in speech.segments) or "nowhere"
    lines = [f"speech in {seconds:.1f} s of sound: {found}"]
    if speech.recording.phrases:
        made = ", ".join(f"{start:.1f} to {end:.1f} s" for start, end in speech.recording.phrases)
        lines.append(f"voices were put at:       {made}")
    return [*lines, timeline(speech.probabilities)]


def timeline(probabilities: np.ndarray) -> str:
    """The probability over time as a strip of characters, each the mean of four steps (128 ms)."""
    whole = probabilities[: len(probabilities) // 4 * 4].reshape(-1, 4).mean(axis=1)
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * probability))] for probability in whole)


def main() -> int:
    parser = command_line("Find where somebody speaks.")
    parser.add_argument("--wav", type=Path, metavar="FILE", help="16 kHz, mono, 16 bit; default: a recording made here")
    arguments = parser.parse_args()
    try:
        recording = read_wav(arguments.wav) if arguments.wav else example_recording()
    except (OSError, EOFError, ValueError, wave.Error) as error:
        print(error, file=sys.stderr)
        return 1
    return run(arguments, lambda server: describe(listen(server, recording)))


if __name__ == "__main__":
    sys.exit(main())
