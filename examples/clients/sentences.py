"""How alike sentences are in meaning, with the model `sentence_embedding`.

python examples/clients/sentences.py [SENTENCE ...] [-i grpc] [-u HOST:PORT]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from connection import Server, command_line, run

MODEL = "sentence_embedding"
SENTENCES = (
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "The match begins at eight, and all seats are sold.",
)


@dataclass(frozen=True)
class Likeness:
    sentences: tuple[str, ...]
    products: np.ndarray  # FP32 [sentences, sentences]: 1 for the same meaning, about 0 for nothing in common


def compare(server: Server, sentences: Sequence[str] = SENTENCES) -> Likeness:
    """All sentences in one request, a row each."""
    column = np.array([[sentence.encode()] for sentence in sentences], np.object_)
    (vectors,) = server.infer(MODEL, {"SENTENCE": column}, ["EMBEDDING"])
    return Likeness(tuple(sentences), vectors @ vectors.T)


def describe(likeness: Likeness) -> list[str]:
    lines = []
    for index, sentence in enumerate(likeness.sentences):
        scores = " ".join(f"{product:6.3f}" for product in likeness.products[index])
        lines.append(f"{index + 1} {scores}   {sentence}")
    numbers = " ".join(f"{index + 1:6}" for index in range(len(likeness.sentences)))
    return [f"  {numbers}", *lines]


def main() -> int:
    parser = command_line("How alike are sentences in meaning?")
    parser.add_argument("sentences", nargs="*", default=SENTENCES, help="two or more; default: four about a day out")
    arguments = parser.parse_args()
    return run(arguments, lambda server: describe(compare(server, arguments.sentences)))


if __name__ == "__main__":
    sys.exit(main())
