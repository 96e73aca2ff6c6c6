"""Shows words as the model `decoupled_tokens` writes them, over streaming gRPC.

    python examples/clients/decoupled_tokens.py [--prompt TEXT] [--tokens N] [--seed N] [-u HOST:PORT]

One request, and a response for each word.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np
from connection import DEFAULT_URLS, show_any_character
from streaming import Stream, is_last
from tritonclient.utils import InferenceServerException

MODEL = "decoupled_tokens"


def words(url: str, prompt: str, count: int, seed: int = 0) -> Iterator[str]:
    """The words that the model writes on, each as soon as it comes. Failures raise `InferenceServerException`.

    Whoever stops early closes the iterator, and the model is told that nobody reads on.
    """
    inputs = {
        "PROMPT": np.array([prompt.encode()], np.object_),
        "MAX_TOKENS": np.array([count], np.int32),
        "SEED": np.array([seed], np.int64),
    }
    with Stream(url) as stream:
        # The empty response with the final flag is wanted, too: it says that all words have come.
        stream.send(MODEL, inputs, enable_empty_final_response=True)
        while True:
            result = stream.receive()
            if result.get_response().outputs:
                yield result.as_numpy("TOKEN")[0].decode()
            if is_last(result):
                return


def main() -> int:
    parser = argparse.ArgumentParser(description="Show words as a model writes them.")
    parser.add_argument("--prompt", default="A class definition", help="what to write on from")
    parser.add_argument("--tokens", type=int, default=30, help="how many words; default: 30")
    parser.add_argument("--seed", type=int, default=0, help="another number, other words; default: 0")
    parser.add_argument("-u", "--url", default=DEFAULT_URLS["grpc"], help="host:port of the server")
    arguments = parser.parse_args()
    show_any_character()
    try:
        print(arguments.prompt, end="", flush=True)
        for word in words(arguments.url, arguments.prompt, arguments.tokens, arguments.seed):
            print(f" {word}", end="", flush=True)
        print()
    except (InferenceServerException, OSError) as error:
        print(f"\ngrpc server at {arguments.url}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
