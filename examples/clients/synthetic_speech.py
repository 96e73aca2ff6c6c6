"""Makes sound to listen to: speech-like phrases, as vowels from a simple formant synthesiser, and what is no speech.

The voice is a train of glottal pulses, shaped by four resonances (the formants) that glide from vowel to vowel, as
the mouth does. It says nothing, but a voice detector takes it for a voice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RATE = 16000  # samples per second

# The first four formants of some vowels, in Hz.
FORMANTS = {
    "a": (730, 1090, 2440, 3400),
    "e": (530, 1840, 2480, 3500),
    "i": (270, 2290, 3010, 3600),
    "o": (570, 840, 2410, 3300),
    "u": (300, 870, 2240, 3300),
}
BANDWIDTHS = (80, 90, 120, 180)  # Hz
VOWEL_SECONDS = 0.2


@dataclass(frozen=True)
class Recording:
    """`samples` are FP32 [n] between -1 and 1 at 16 kHz; `phrases` the seconds from which to which a voice sounds."""

    samples: np.ndarray
    phrases: tuple[tuple[float, float], ...]


def example_recording() -> Recording:
    """A low voice, a bell, rain, a high voice, with quiet between them: about seven seconds."""
    random = np.random.default_rng(seed=7)
    parts = [
        (quiet(0.8), False),
        (phrase("aieouaei", pitch=115, random=random), True),
        (quiet(0.7), False),
        (bell(0.8), False),
        (rain(0.8, random), False),
        (quiet(0.5), False),
        (phrase("ieaoeia", pitch=180, random=random), True),
        (quiet(0.8), False),
    ]
    phrases = []
    position = 0
    for samples, is_voice in parts:
        if is_voice:
            phrases.append((position / RATE, (position + len(samples)) / RATE))
        position += len(samples)
    samples = np.concatenate([samples for samples, _ in parts])
    room = random.normal(0, 0.001, len(samples))  # no room is wholly silent
    return Recording((samples + room).astype(np.float32), tuple(phrases))


def phrase(vowels: str, *, pitch: float, random: np.random.Generator) -> np.ndarray:
    """A run of vowels, one syllable each, with the pitch (Hz) falling towards the end."""
    per_vowel = int(VOWEL_SECONDS * RATE)
    time = np.arange(per_vowel * len(vowels))
    done = time / len(time)
    vibrato = 1 + 0.02 * np.sin(2 * np.pi * 5 * time / RATE)
    cycle = np.cumsum(pitch * (1.15 - 0.3 * done) * vibrato / RATE) % 1
    sound = np.diff(glottal_flow(cycle), prepend=0) + random.normal(0, 0.002, len(time))

    middles = (np.arange(len(vowels)) + 0.5) * per_vowel
    for formant, bandwidth in enumerate(BANDWIDTHS):
        frequency = np.interp(time, middles, [FORMANTS[vowel][formant] for vowel in vowels])
        sound = resonate(sound, frequency, bandwidth)

    into_vowel = time % per_vowel
    fade = np.minimum(into_vowel, per_vowel - into_vowel) / (0.03 * RATE)
    sound *= 0.15 + 0.85 * np.clip(fade, 0, 1) ** 0.7
    return 0.5 * sound / np.abs(sound).max()


def glottal_flow(cycle: np.ndarray) -> np.ndarray:
    """Air through the vocal folds over a cycle (0 to 1): they open slowly, close fast, and rest."""
    opening = 0.5 * (1 - np.cos(np.pi * cycle / 0.4))
    closing = np.cos(np.pi / 2 * (cycle - 0.4) / 0.16)
    return np.where(cycle < 0.4, opening, np.where(cycle < 0.56, closing, 0.0))


def resonate(sound: np.ndarray, frequency: np.ndarray, bandwidth: float) -> np.ndarray:
    """A second-order resonance whose frequency (Hz) moves from sample to sample."""
    radius = np.exp(-np.pi * bandwidth / RATE)
    feedback = (2 * radius * np.cos(2 * np.pi * frequency / RATE)).tolist()
    decay = -radius * radius
    before, last = 0.0, 0.0
    out = []
    for value, first in zip(sound.tolist(), feedback, strict=True):
        before, last = last, (1 - first - decay) * value + first * last + decay * before
        out.append(last)
    return np.array(out)


def quiet(seconds: float) -> np.ndarray:
    return np.zeros(int(seconds * RATE))


def bell(seconds: float) -> np.ndarray:
    time = np.arange(int(seconds * RATE)) / RATE
    partials = sum(np.sin(2 * np.pi * frequency * time) for frequency in (880, 2217, 3520))
    return 0.1 * partials * np.exp(-4 * time)


def rain(seconds: float, random: np.random.Generator) -> np.ndarray:
    return random.normal(0, 0.05, int(seconds * RATE))
