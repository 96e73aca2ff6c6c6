"""Writes on from a prompt, word by word: a decoupled model, which sends each word as soon as it has it.

It has learned which word follows which two from the Python language reference that every Python carries (`pydoc_data`).
The words make no sense together; how they travel is how those of a large model would.
"""

import json
import random
import threading
import time
from collections import defaultdict
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

DEFAULT_TOKENS = 20
MOST_TOKENS = 1000
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        rate = float(parameters["tokens_per_second"]["string_value"])
        self.pause = 1 / rate if rate else 0.0
        self.followers: dict[tuple[str, ...], list[str]] = defaultdict(list)
        words = " ".join(topics[name] for name in sorted(topics)).split()
        for first, second, third in zip(words, words[1:], words[2:], strict=False):
            self.followers[first, second].append(third)
            self.followers[second,].append(third)
        self.words = words
        self.threads: set[threading.Thread] = set()

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        # A thread for each request: the next one need not wait until this one is written to its end.
        for request in requests:
            thread = threading.Thread(target=self.answer, args=(request,))
            self.threads.add(thread)
            thread.start()

    def finalize(self) -> None:
        for thread in list(self.threads):
            thread.join()

    def answer(self, request: pb_utils.InferenceRequest) -> None:
        sender = request.get_response_sender()
        error = None
        try:
            self.write(request, sender)
        except Exception as problem:  # in a thread of our own nobody else tells the client
            error = pb_utils.InferenceResponse(error=problem_of(problem))
        finally:
            sender.send(error, flags=FINAL)  # also after a cancellation: it ends the request
            self.threads.discard(threading.current_thread())

    def write(self, request: pb_utils.InferenceRequest, sender: Any) -> None:
        prompt = value(request, "PROMPT", b"").decode("utf-8").split()
        count = int(value(request, "MAX_TOKENS", DEFAULT_TOKENS))
        if not 1 <= count <= MOST_TOKENS:
            raise ValueError(f"MAX_TOKENS must be from 1 to {MOST_TOKENS}, got {count}")
        chance = random.Random(int(value(request, "SEED", 0)))
        context = tuple(prompt[-2:])
        for index in range(count):
            if sender.is_cancelled():  # the client has gone: nobody reads on
                return
            word = self.next_word(context, chance)
            token = pb_utils.Tensor("TOKEN", np.array([word.encode()], np.object_))
            place = pb_utils.Tensor("INDEX", np.array([index], np.int32))
            sender.send(pb_utils.InferenceResponse([token, place]))
            context = (*context[-1:], word)
            time.sleep(self.pause)

    def next_word(self, context: tuple[str, ...], chance: random.Random) -> str:
        """A word that has followed these two, or the last of them, or any."""
        known = self.followers.get(context) or self.followers.get(context[-1:]) or self.words
        return chance.choice(known)


def value(request: pb_utils.InferenceRequest, name: str, default: object) -> object:
    """The only element of an input, or the default where the request has none of that name."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy()[0]


def problem_of(error: Exception) -> pb_utils.TritonError:
    code = pb_utils.TritonError.INVALID_ARG if isinstance(error, ValueError) else pb_utils.TritonError.INTERNAL
    return pb_utils.TritonError(str(error), code)
