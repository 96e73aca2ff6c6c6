"""Finding speech with the real model, in sound made here."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from tests.examples.loading import load_example
from tests.examples.local_server import LocalServer

voice_activity = load_example("clients/voice_activity")
synthetic_speech = load_example("clients/synthetic_speech")

STEP = 0.032  # seconds


def test_the_voices_of_the_recording_are_found(server: LocalServer) -> None:
    """Bell and rain are none, and each voice is found where it is, to a tenth of a second or so."""
    recording = synthetic_speech.example_recording()
    speech = voice_activity.listen(server, recording)
    assert len(recording.phrases) == 2
    assert np.array(speech.segments) == pytest.approx(np.array(recording.phrases), abs=0.15)


def test_each_step_is_one_request(server: LocalServer) -> None:
    """A step that is not full is not sent."""
    probabilities = list(voice_activity.speech_probabilities(server, np.zeros(512 * 3 + 511, dtype=np.float32)))
    assert len(probabilities) == 3
    assert server.batch_sizes == [("voice_activity", 1)] * 3


@pytest.mark.parametrize("name", ["quiet", "bell", "rain"])
def test_no_voice_is_found_where_there_is_none(server: LocalServer, name: str) -> None:
    random = np.random.default_rng(seed=1)
    sound = {
        "quiet": synthetic_speech.quiet(2),
        "bell": synthetic_speech.bell(2),
        "rain": synthetic_speech.rain(2, random),
    }[name]
    recording = synthetic_speech.Recording(sound.astype(np.float32), ())
    assert voice_activity.listen(server, recording).segments == ()


def test_speech_goes_on_with_the_memory_of_what_came_before(server: LocalServer) -> None:
    """The state tensor counts: the same sound is judged otherwise when it is the first that the model hears."""
    samples = synthetic_speech.example_recording().samples
    start = 512 * 30
    whole = list(voice_activity.speech_probabilities(server, samples[: start + 512]))
    alone = list(voice_activity.speech_probabilities(server, samples[start : start + 512]))
    assert abs(whole[-1] - alone[0]) > 0.05


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([], []),
        ([0.4] * 20, []),
        ([0.9] * 20, [(0, 20)]),
        ([0.0] * 5 + [0.9] * 20 + [0.0] * 10, [(5, 25)]),
        ([0.9] * 10 + [0.0] * 2 + [0.9] * 10, [(0, 22)]),
        ([0.9] * 10 + [0.0] * 5 + [0.9] * 10, [(0, 10), (15, 25)]),
        ([0.9] * 10 + [0.4] * 9, [(0, 19)]),
        ([0.0] * 5 + [0.9] * 5 + [0.0] * 10, []),
    ],
    ids=["nothing", "never sure", "all", "one", "short pause", "long pause", "fading", "too short"],
)
def test_segments(probabilities: list[float], expected: list[tuple[int, int]]) -> None:
    """Segments in steps of 32 ms."""
    found = voice_activity.segments(np.array(probabilities))
    assert [(round(start / STEP), round(end / STEP)) for start, end in found] == expected


def write_wav(path: Path, *, rate: int = 16000, channels: int = 1, width: int = 2) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(np.array([0, 16384, -32768], dtype="<i2").tobytes())
    return path


def test_a_wav_file_is_read_as_fractions_of_one(tmp_path: Path) -> None:
    recording = voice_activity.read_wav(write_wav(tmp_path / "a.wav"))
    assert recording.samples.dtype == np.float32
    assert recording.samples.tolist() == [0.0, 0.5, -1.0]


def test_another_form_of_wav_is_refused_with_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 16000 Hz, 1 channel, 16 bit; got 8000 Hz, 1, 16"):
        voice_activity.read_wav(write_wav(tmp_path / "a.wav", rate=8000))


def test_the_answer_in_words() -> None:
    recording = synthetic_speech.Recording(np.zeros(16000, dtype=np.float32), ((0.2, 0.6),))
    speech = voice_activity.Speech(recording, np.array([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]), ((0.25, 0.61),))
    assert voice_activity.describe(speech) == [
        "speech in 1.0 s of sound: 0.2 to 0.6 s",
        "voices were put at:       0.2 to 0.6 s",
        "▁█",
    ]
