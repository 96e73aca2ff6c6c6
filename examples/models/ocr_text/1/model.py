"""Turns what the recognition model saw into text (CTC decoding). It has no config.pbtxt: the model describes itself.

probabilities  FP32 [steps, characters]  one row per step from left to right, as `ocr_recognition` answers
text           BYTES [1]                 what stands in the line, UTF-8
confidence     FP32 [1]                  mean probability of its characters, 0 where there are none
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

BLANK = 0  # the class that means "no new character here"


def read_alphabet(path: Path) -> list[str]:
    """The characters by class: the blank, the file's (one per line), and the space, which the file leaves out."""
    return ["", *path.read_bytes().decode("utf-8").split("\n"), " "]


def decode_line(probabilities: np.ndarray, alphabet: list[str]) -> tuple[str, float]:
    """Take the likeliest class per step, merge repeats, drop blanks."""
    classes = probabilities.argmax(axis=1)
    is_new = np.concatenate(([True], classes[1:] != classes[:-1])) & (classes != BLANK)
    if not is_new.any():
        return "", 0.0
    text = "".join(alphabet[index] for index in classes[is_new])
    return text, float(probabilities.max(axis=1)[is_new].mean())


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Tell the server what config.pbtxt would; called once per load, before any instance is made."""
        config = auto_complete_model_config
        config.set_max_batch_size(32)
        config.set_dynamic_batching()
        config.add_input({"name": "probabilities", "data_type": "TYPE_FP32", "dims": [-1, -1]})
        config.add_output({"name": "text", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "confidence", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def initialize(self, args: dict[str, str]) -> None:
        version_directory = Path(args["model_repository"]) / args["model_version"]
        self.alphabet = read_alphabet(version_directory / "characters.txt")

    def execute(self, requests: list) -> list:
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        probabilities = pb_utils.get_input_tensor_by_name(request, "probabilities").as_numpy()
        if probabilities.shape[2] != len(self.alphabet):
            # An error of one request leaves the others of its batch alone.
            message = f"probabilities: expected {len(self.alphabet)} characters per step, got {probabilities.shape[2]}"
            error = pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=error)
        lines = [decode_line(line, self.alphabet) for line in probabilities]
        text = np.array([[text.encode()] for text, _ in lines], dtype=np.object_)
        confidence = np.array([[confidence] for _, confidence in lines], dtype=np.float32)
        outputs = [pb_utils.Tensor("text", text), pb_utils.Tensor("confidence", confidence)]
        return pb_utils.InferenceResponse(output_tensors=outputs)
