"""Sentences to vectors: cut into tokens, run through the encoder once for the batch, given back to their requests.

`encoder.onnx` and `tokenizer.json` lie beside this file. Two sentences mean nearly the same where the product of their
vectors, which have length 1, is nearly 1.
"""

import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

MOST_TOKENS = 256  # the encoder was trained with no more; a longer sentence is cut off


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        folder = pb_utils.get_model_dir()
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.tokenizer.enable_truncation(MOST_TOKENS)
        self.tokenizer.enable_padding()  # to the longest sentence of the batch
        self.encoder = onnxruntime.InferenceSession(
            os.path.join(folder, "encoder.onnx"), providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        columns = [pb_utils.get_input_tensor_by_name(request, "SENTENCE").as_numpy() for request in requests]
        sentences = [row.decode("utf-8", "replace") for column in columns for row in column[:, 0]]
        encoded = self.tokenizer.encode_batch(sentences)
        feed = {
            "ids": np.array([each.ids for each in encoded], np.int64),
            "mask": np.array([each.attention_mask for each in encoded], np.int64),
        }
        (vectors,) = self.encoder.run(["embedding"], feed)
        parts = np.split(vectors, np.cumsum([len(column) for column in columns])[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", part)]) for part in parts]
