"""A core whose text model gives scripted responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import trio

from protocol.core import ModelMetadata, Respond, TensorMetadata
from protocol.datatypes import DataType
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from protocol.text.chat_template import ChatTemplate
from protocol.text.model import TextModel
from tests.protocol.http.fake_core import FakeCore

INPUTS = (
    ("text_input", "BYTES"),
    ("stream", "BOOL"),
    ("sampling_parameters", "BYTES"),
    ("return_logprobs", "BOOL"),
)
OUTPUTS = (("text_output", "BYTES"), ("num_output_tokens", "UINT32"))
TEMPLATE = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}")
# What stands in a script for a wait without an end.
FOREVER = "FOREVER"


@dataclass
class ScriptedCore(FakeCore):
    """`script` is what each request to the model `m` is answered with: texts, and errors that are raised. The last text
    has the finish reason."""

    script: Sequence[str | Exception] = ("a", "b", "c")
    finish_reason: str = "stop"

    def __post_init__(self) -> None:
        self.texts = self.texts or (TextModel("m", 1, chat_template=TEMPLATE, adapters={"poet": "/p"}),)

    def _check(self, name: str, version: int) -> None:
        if name != "m":
            super()._check(name, version)

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        if name != "m":
            return super().model_metadata(name, version)
        made = [tuple(TensorMetadata(each, kind, (1,)) for each, kind in named) for named in (INPUTS, OUTPUTS)]
        return ModelMetadata("m", ("1",), "python", *made)

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        self.requests.append(request)
        self.started.set()
        try:
            for place, piece in enumerate(self.script):
                await trio.lowlevel.checkpoint()
                if isinstance(piece, Exception):
                    raise piece
                if piece == FOREVER:
                    await trio.sleep_forever()
                await respond(self._response(piece, self.finish_reason if place + 1 == len(self.script) else "None"))
                self.sent += 1
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return True

    def _response(self, piece: str, reason: str) -> InferenceResponse:
        logprobs = [{"7": {"logprob": -1.0, "rank": 1, "decoded_token": piece}}]
        texts = {"text_output": piece, "finish_reason": reason, "logprobs": msgspec.json.encode(logprobs).decode()}
        outputs = [Tensor(name, DataType.BYTES, (1,), encode_bytes_elements([text])) for name, text in texts.items()]
        for name, count in (("num_input_tokens", 5), ("num_output_tokens", 1)):
            outputs.append(Tensor.from_numpy(name, np.array([count], np.uint32)))
        return InferenceResponse("m", 1, outputs)


def sampling_of(request: InferenceRequest) -> dict[str, Any]:
    """The sampling parameters that a model was given."""
    (tensor,) = [each for each in request.inputs if each.name == "sampling_parameters"]
    made: dict[str, Any] = msgspec.json.decode(tensor.as_numpy()[0])
    return made


def prompt_of(request: InferenceRequest) -> str:
    (tensor,) = [each for each in request.inputs if each.name == "text_input"]
    text: str = tensor.as_numpy()[0].decode()
    return text


def events(body: bytes) -> Iterator[Any]:
    """The data of each event, as JSON where it is; comments as they are."""
    *parts, rest = body.decode().split("\n\n")
    assert rest == ""
    for part in parts:
        if part.startswith(":"):
            yield part
        else:
            assert part.startswith("data: ")
            data = part.removeprefix("data: ")
            yield data if data == "[DONE]" else msgspec.json.decode(data)
