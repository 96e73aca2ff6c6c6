"""What the clients of streaming models share: one gRPC stream, with its answers in the order in which they come."""

from __future__ import annotations

import gc
import queue
from collections.abc import Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

PATIENCE = 10.0  # seconds without an answer


class Stream:
    """To be used in a `with` block, from one thread. Failures raise `InferenceServerException`.

    Left early, the server is told that nobody waits for the rest.
    """

    def __init__(self, url: str) -> None:
        self._answers: queue.Queue[tuple[Any, InferenceServerException | None]] = queue.Queue()
        self._client = InferenceServerClient(url)

    def __enter__(self) -> Stream:
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()
        # A stream that failed is left in a reference cycle. Finalised no sooner than at the interpreter's exit, it may
        # wait for ever for a lock of a gRPC thread that is gone by then.
        gc.collect()

    @property
    def has_answers(self) -> bool:
        """Whether `receive` would not wait."""
        return not self._answers.empty()

    def send(self, model: str, inputs: Mapping[str, np.ndarray], **options: Any) -> None:
        """Does not wait for the answer. The options are those of `InferenceServerClient.async_stream_infer`."""
        tensors = [_tensor(name, array) for name, array in inputs.items()]
        failure: InferenceServerException | None = None
        try:
            self._client.async_stream_infer(model, tensors, **options)
        except InferenceServerException as error:
            failure = error.with_traceback(None)  # which would hold the stream for longer than `with` does
        if failure is not None:
            while self.has_answers:
                self.receive()  # where a stream has failed, the reason has come as an answer
            raise failure

    def receive(self) -> Any:
        """The next answer to any of the requests."""
        try:
            result, error = self._answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise InferenceServerException(f"no answer came for {PATIENCE:g} seconds") from None
        if error is not None:
            raise error
        return result


def is_last(result: Any) -> bool:
    """Whether no answer follows to the same request, which was sent with `enable_empty_final_response`."""
    return result.get_response().parameters["triton_final_response"].bool_param


def _tensor(name: str, array: np.ndarray) -> InferInput:
    made = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made
