"""A toy language model: which word may follow which, as in some sentences. One round, one word for each request.

The batch is computed as one, as a real model would: a row of probabilities for each request, then a choice in each.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils

TEXT = """
the server takes a request and the model gives an answer .
the model takes a batch and the batch takes a while .
a request joins the batch while the model runs .
a client that leaves takes its request out of the batch .
an answer comes word by word and each word waits for the word before it .
"""
END = "."


def vocabulary_of(text):
    """All words, each once; the end is word 0, and so is the beginning, since a sentence follows a sentence."""
    return [END, *sorted(set(text.split()) - {END})]


def transitions_of(text, vocabulary):
    """FP64 [words, words]: how likely the second follows the first."""
    numbers = {word: number for number, word in enumerate(vocabulary)}
    path = [0, *(numbers[word] for word in text.split())]
    counts = np.zeros((len(vocabulary), len(vocabulary)))
    np.add.at(counts, (path[:-1], path[1:]), 1)
    return counts / counts.sum(axis=1, keepdims=True)


def next_words(transitions, last, chances):
    """The next word of each row: the first one up to which the probabilities reach the row's chance (0 to 1)."""
    reached = np.cumsum(transitions[last], axis=1)
    return np.minimum((reached <= chances[:, None]).sum(axis=1), transitions.shape[1] - 1)


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.seconds = float(config["parameters"]["seconds"]["string_value"])
        self.vocabulary = vocabulary_of(TEXT)
        self.numbers = {word: number for number, word in enumerate(self.vocabulary)}
        self.transitions = transitions_of(TEXT, self.vocabulary)

    def execute(self, requests):
        def column(name):
            return np.array([pb_utils.get_input_tensor_by_name(each, name).as_numpy()[0, 0] for each in requests])

        time.sleep(self.seconds)
        counts = column("COUNT")
        last = np.where(counts == 0, [self.number_of(prompt) for prompt in column("PROMPT")], column("LAST"))
        seeds = column("SEED") & 0x7FFFFFFF  # the generator takes no negative ones
        chances = np.array([np.random.default_rng(pair).random() for pair in zip(seeds, counts, strict=True)])
        words = next_words(self.transitions, last, chances)
        for request, word, count, most in zip(requests, words, counts + 1, column("MAX_TOKENS"), strict=True):
            sender = request.get_response_sender()
            sender.send(self.response(word, count, len(requests)))
            if word != 0 and count < most:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def number_of(self, prompt):
        """Of its last word, if the model knows it; else a sentence begins."""
        words = prompt.decode().lower().split()
        return self.numbers.get(words[-1], 0) if words else 0

    def response(self, word, count, company):
        def row(name, value, dtype):
            return pb_utils.Tensor(name, np.array([[value]], dtype))

        return pb_utils.InferenceResponse(
            [
                row("TOKEN", self.vocabulary[word], np.object_),
                row("COMPANY", company, np.int32),
                row("NEXT", word, np.int32),
                row("NEXT_COUNT", count, np.int32),
            ]
        )
