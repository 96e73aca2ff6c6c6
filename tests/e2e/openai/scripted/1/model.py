"""A decoupled model that answers as a language model would: token by token, from a script.

The script is `script.json` in the version's folder: answers, as lists of tokens, by a text in the prompt. Every other
prompt is answered with what the model was given, as JSON. Of the prompts that mean something, `forever` never ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.folder = Path(args["model_repository"]) / args["model_version"]
        self.script = json.loads((self.folder / "script.json").read_text())

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self.answer(request)

    def answer(self, request: Any) -> None:
        given = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
        prompt = given["text_input"].decode()
        sampling = json.loads(given.get("sampling_parameters", b"{}"))
        streams = bool(given.get("stream", False))
        sender = request.get_response_sender()
        if "forever" in prompt:
            self.run_forever(request, sender)
            return
        keys = [key for key in self.script if key in prompt]
        tokens = self.script[max(keys, key=prompt.rfind)] if keys else None
        if tokens is None:
            tokens = [json.dumps(self.described(request, given, sampling))]
        reason = "stop"
        most = sampling.get("max_tokens")
        if most is not None and most < len(tokens):
            tokens, reason = tokens[:most], "length"
        if tokens and tokens[-1] == "FAIL":
            self.fail_late(sender, tokens[:-1])
        elif streams:
            for place, token in enumerate(tokens):
                is_last = place + 1 == len(tokens)
                sender.send(self.response(given, prompt, [token], reason if is_last else "None"))
        else:
            sender.send(self.response(given, prompt, tokens, reason))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def run_forever(self, request: Any, sender: Any) -> None:
        (self.folder / "begun").write_text("")
        while not request.is_cancelled():
            sender.send(pb_utils.InferenceResponse([text("text_output", " on")]))
            time.sleep(0.02)
        (self.folder / "cancelled").write_text("")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def fail_late(self, sender: Any, tokens: Sequence[str]) -> None:
        for token in tokens:
            sender.send(pb_utils.InferenceResponse([text("text_output", token)]))
        sender.send(pb_utils.InferenceResponse([], pb_utils.TritonError("the engine has failed")))

    def described(self, request: Any, given: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
        flags = {
            name: bool(value) for name, value in given.items() if name not in ("text_input", "sampling_parameters")
        }
        return {
            "prompt": given["text_input"].decode(),
            "sampling": sampling,
            "flags": flags,
            "parameters": json.loads(request.parameters()),
        }

    def response(self, given: dict[str, Any], prompt: str, tokens: Sequence[str], reason: str) -> Any:
        outputs = [text("text_output", "".join(tokens))]
        if given.get("return_finish_reason"):
            outputs.append(text("finish_reason", reason))
        if given.get("return_num_input_tokens"):
            outputs.append(number("num_input_tokens", len(prompt.split())))
        if given.get("return_num_output_tokens"):
            outputs.append(number("num_output_tokens", len(tokens)))
        if given.get("return_logprobs"):
            outputs.append(text("logprobs", json.dumps([logprobs(token) for token in tokens])))
        return pb_utils.InferenceResponse(outputs)


def logprobs(token: str) -> dict[str, Any]:
    """The token that was taken is only the second likeliest."""
    return {
        "7": {"logprob": -1.5, "rank": 2, "decoded_token": token},
        "8": {"logprob": -0.25, "rank": 1, "decoded_token": "other"},
    }


def text(name: str, value: str) -> Any:
    return pb_utils.Tensor(name, np.array([value.encode()], dtype=object))


def number(name: str, value: int) -> Any:
    return pb_utils.Tensor(name, np.array([value], dtype=np.uint32))
