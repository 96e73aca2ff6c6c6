"""The Python models, on the API that they meet in their worker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.examples.loading import EXAMPLES, load_example, load_model
from tests.examples.local_server import LocalServer

add_sub = load_example("clients/add_sub")
ocr_text = load_model(EXAMPLES / "models" / "ocr_text" / "1" / "model.py")

ALPHABET = ["", "a", "b", " "]


def test_add_sub_answers_the_client(server: LocalServer) -> None:
    sums = add_sub.add_and_subtract(server)
    np.testing.assert_array_equal(sums.added, sums.left + sums.right)
    np.testing.assert_array_equal(sums.subtracted, sums.left - sums.right)
    assert add_sub.describe(sums) == [
        " 0 + 10 = 10     0 - 10 = -10",
        " 1 + 10 = 11     1 - 10 =  -9",
        "…",
        "15 + 10 = 25    15 - 10 =   5",
    ]


def test_add_sub_keeps_each_request_its_own_batch(server: LocalServer) -> None:
    one = np.ones((3, 16), dtype=np.float32)
    added, subtracted = server.infer("add_sub", {"INPUT0": one, "INPUT1": one}, ["OUTPUT0", "OUTPUT1"])
    assert added.shape == subtracted.shape == (3, 16)


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        ([], ""),
        ([0, 0, 0], ""),
        ([1, 2], "ab"),
        ([1, 1, 2, 2, 2], "ab"),
        ([0, 1, 0, 1, 0], "aa"),
        ([1, 1, 0, 3, 0, 2], "a b"),
    ],
    ids=["no steps", "blanks", "plain", "repeats merge", "a blank parts", "space"],
)
def test_decoding(classes: list[int], text: str) -> None:
    """One row of probabilities per step, the likeliest class of each as given."""
    probabilities = np.full((len(classes), len(ALPHABET)), 0.1, dtype=np.float32)
    probabilities[np.arange(len(classes)), classes] = 0.7
    decoded, confidence = ocr_text.decode_line(probabilities, ALPHABET)
    assert decoded == text
    assert confidence == pytest.approx(0.7 if text else 0)


def test_the_alphabet_has_a_blank_before_and_a_space_after_the_file(tmp_path: Path) -> None:
    (tmp_path / "characters.txt").write_text("a\né\n世", encoding="utf-8")
    assert ocr_text.read_alphabet(tmp_path / "characters.txt") == ["", "a", "é", "世", " "]


def test_text_is_answered_as_utf_8_bytes_per_line(server: LocalServer) -> None:
    """Two lines with one character each, 世 and nothing."""
    alphabet = ocr_text.read_alphabet(server.repository / "ocr_text" / "1" / "characters.txt")
    probabilities = np.zeros((2, 3, len(alphabet)), dtype=np.float32)
    probabilities[0, :, alphabet.index("世")] = 1
    probabilities[1, :, 0] = 1
    text, confidence = server.infer("ocr_text", {"probabilities": probabilities}, ["text", "confidence"])
    assert text.tolist() == [["世".encode()], [b""]]
    assert confidence.tolist() == [[1.0], [0.0]]
    assert confidence.dtype == np.float32


def test_another_alphabet_is_an_error_of_that_request(server: LocalServer) -> None:
    with pytest.raises(RuntimeError, match="expected 6625 characters per step, got 10"):
        server.infer("ocr_text", {"probabilities": np.zeros((1, 3, 10), dtype=np.float32)}, ["text"])
