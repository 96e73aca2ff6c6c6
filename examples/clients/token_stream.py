"""Prints text while it is generated, word after word, with the toy model `token_generator`, over gRPC.

    python examples/clients/token_stream.py [PROMPT ...] [--tokens N] [--seed N] [-u HOST:PORT]

Every prompt is a request of its own, and all run at the same time: each begins a little later than the one before it
and joins the rounds of those that are under way. One prompt is printed as it comes; of several, each line is a word,
with how many requests shared its round.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from connection import DEFAULT_URLS, show_any_character
from streaming import Stream, is_last
from tritonclient.utils import InferenceServerException

MODEL = "token_generator"
PROMPTS = ("the model", "a client", "each")
LATER = 0.06  # seconds between two requests


@dataclass
class Generated:
    prompt: str
    words: list[str] = field(default_factory=list)
    company: list[int] = field(default_factory=list)  # how many requests shared each word's round


# Told of each word: which prompt, and what there is of it now.
Told = Callable[[int, Generated], None]


def generate(url: str, prompts: Sequence[str], told: Told, *, tokens: int, seed: int = 0) -> list[Generated]:
    """Have all prompts continued, each by up to so many words. Failures raise `InferenceServerException`."""
    texts = [Generated(prompt) for prompt in prompts]
    with Stream(url) as stream:
        left = set(range(len(texts)))
        for number, prompt in enumerate(prompts):
            if number:
                time.sleep(LATER)
            # The empty final response says that there is nothing more.
            inputs = request(prompt, tokens, seed + number)
            stream.send(MODEL, inputs, request_id=str(number), enable_empty_final_response=True)
        while left:
            take(stream, texts, left, told)
    return texts


def take(stream: Stream, texts: Sequence[Generated], left: set[int], told: Told) -> None:
    """One response: a word, or the end of a request."""
    result = stream.receive()
    response = result.get_response()
    number = int(response.id)
    if response.outputs:
        texts[number].words.append(result.as_numpy("TOKEN")[0, 0].decode())
        texts[number].company.append(int(result.as_numpy("COMPANY")[0, 0]))
        told(number, texts[number])
    if is_last(result):
        left.discard(number)


def request(prompt: str, tokens: int, seed: int) -> dict[str, np.ndarray]:
    return {
        "PROMPT": np.array([[prompt.encode()]], dtype=np.object_),
        "MAX_TOKENS": np.array([[tokens]], dtype=np.int32),
        "SEED": np.array([[seed]], dtype=np.int32),
    }


def print_word(number: int, text: Generated) -> None:
    print(f"{text.prompt:>12} … {text.words[-1]:<10} {text.company[-1]} in the round", flush=True)


def print_on(number: int, text: Generated) -> None:
    print(f" {text.words[-1]}", end="", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Print text while it is generated.")
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="where to begin; default: three prompts")
    parser.add_argument("--tokens", type=int, default=16, help="words at most, for each prompt; default: 16")
    parser.add_argument("--seed", type=int, default=0, help="another number, other words; default: 0")
    parser.add_argument("-u", "--url", default=DEFAULT_URLS["grpc"], help=f"default: {DEFAULT_URLS['grpc']}")
    arguments = parser.parse_args()
    show_any_character()
    prompts = arguments.prompts or PROMPTS
    told = print_word
    if len(prompts) == 1:
        told = print_on
        print(prompts[0], end="", flush=True)
    try:
        texts = generate(arguments.url, prompts, told, tokens=arguments.tokens, seed=arguments.seed)
    except (InferenceServerException, OSError) as error:
        print(f"grpc server at {arguments.url}: {error}", file=sys.stderr)
        return 1
    print()
    if len(texts) > 1:
        print(*(" ".join([text.prompt, *text.words]) for text in texts), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
