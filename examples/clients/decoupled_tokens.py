"""Shows words as the model `decoupled_tokens` writes them, over streaming gRPC.

python examples/clients/decoupled_tokens.py [--prompt TEXT] [--tokens N] [--seed N] [-u HOST:PORT]
"""

from __future__ import annotations

import argparse
import queue
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from connection import DEFAULT_URLS, show_any_character
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

MODEL = "decoupled_tokens"
PATIENCE = 30.0  # seconds without a word


def words(url: str, prompt: str, count: int, seed: int = 0) -> Iterator[str]:
    """The words that the model writes on, each as soon as it comes. Failures raise `InferenceServerException`.

    Whoever stops early closes the iterator, and the model is told that nobody reads on.
    """
    answers: queue.Queue[tuple[Any, InferenceServerException | None]] = queue.Queue()
    with InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        try:
            inputs = [
                tensor("PROMPT", np.array([prompt.encode()], np.object_)),
                tensor("MAX_TOKENS", np.array([count], np.int32)),
                tensor("SEED", np.array([seed], np.int64)),
            ]
            # The empty response with the final flag is wanted, too: it says that all words have come.
            client.async_stream_infer(MODEL, inputs, enable_empty_final_response=True)
            while True:
                try:
                    result, error = answers.get(timeout=PATIENCE)
                except queue.Empty:
                    raise InferenceServerException(f"no word came for {PATIENCE:g} seconds") from None
                if error is not None:
                    raise error
                response = result.get_response()
                if response.outputs:
                    yield result.as_numpy("TOKEN")[0].decode()
                if response.parameters["triton_final_response"].bool_param:
                    return
        finally:
            client.stop_stream(cancel_requests=True)


def tensor(name: str, array: np.ndarray) -> InferInput:
    made = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


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
