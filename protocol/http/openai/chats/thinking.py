"""Thinking with a budget: an inference whose model has thought for so many tokens is ended, and another one goes on
from what it has said, behind the mark that ends thoughts. To whoever reads it is one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import trio

from protocol.core import ModelMetadata, Respond
from protocol.datatypes import DataType
from protocol.http.openai.codec.requests import ChatRequest
from protocol.http.openai.codec.tensors import TextPart, decode_text_response
from protocol.http.openai.errors import FieldError
from protocol.http.openai.generation import StreamingCore
from protocol.http.openai.inferences import Inferences, seed_of
from protocol.http.openai.prompts import CONTEXT_EXCEEDED, Prompt, measured
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from protocol.text.model import TextModel
from protocol.text.output_parser import is_reasoning_open
from protocol.text.thinking import ThinkingMarks, ThinkingWatch, thinking_marks

FIELD = "thinking_token_budget"


@dataclass(frozen=True, slots=True)
class ThinkingPlan:
    """The budget of one call, in tokens, and what stands around the model's thoughts."""

    marks: ThinkingMarks
    budget: int
    is_open: bool

    def watch(self) -> ThinkingWatch:
        return ThinkingWatch(self.marks, self.budget, is_open=self.is_open)


def check_thinking(text: TextModel, metadata: ModelMetadata) -> bool:
    """Whether thoughts have to be kept to a budget: those of a model that is not known to think need not.

    Raises:
        FieldError: it cannot be kept.
    """
    if not text.reasoning_parser:
        return False
    names = text.names
    streams = names.stream in {each.name for each in metadata.inputs} and not names.accumulates
    counts = names.num_output_tokens in {each.name for each in metadata.outputs} or text.tokenizer is not None
    if not (streams and counts):
        reason = "counts no tokens" if streams else f"has no input '{names.stream}' that has its text come in pieces"
        raise FieldError(
            f"a budget of thinking cannot be honoured: model '{text.name}' {reason}", FIELD, "unsupported_parameter"
        )
    return True


def plan_thinking(
    body: ChatRequest, text: TextModel, prompt: Prompt, sampling: Mapping[str, Any]
) -> ThinkingPlan | None:
    """None where there are no thoughts, since the output has a form, or where the whole answer is as short."""
    marks, budget, most = thinking_marks(text.reasoning_parser), body.thinking_token_budget, prompt.max_tokens
    if marks is None or budget is None or (most is not None and budget >= most) or "structured_outputs" in sampling:
        return None
    is_open = is_reasoning_open(text.reasoning_parser, prompt.text)
    return ThinkingPlan(marks, budget, text.reasoning_parser == "deepseek_r1" if is_open is None else is_open)


class BudgetedCore:
    """Implements `StreamingCore` for the inferences of one chat."""

    def __init__(
        self, core: StreamingCore, text: TextModel, plan: ThinkingPlan, body: ChatRequest, inferences: Inferences
    ) -> None:
        self._core = core
        self._text = text
        self._plan = plan
        self._body = body
        self._inferences = inferences
        if (charge := inferences.requests[0].charge) is not None:
            charge.inferences = 2 * len(inferences.requests)  # each may go on

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        """As the core's; cancelled, neither inference goes on."""
        watch = self._plan.watch()
        scope = trio.CancelScope()

        async def watched(response: InferenceResponse) -> None:
            if scope.cancel_called:  # one more was on its way
                return
            part = decode_text_response(response, self._text.names)
            await respond(response)
            if watch.push(part.text, self._size(part)) and not part.finish_reason:
                scope.cancel()

        is_final = False
        with scope:
            is_final = await self._core.infer_stream(request, watched)
        if not scope.cancelled_caught:
            return is_final
        closing = self._plan.marks.closing
        await respond(self._response(request, closing.strip()))
        rest = await self._go_on(request, watch.said + closing, watch.tokens)
        if rest is None:
            await respond(self._response(request, "", "length"))
            return True
        return await self._core.infer_stream(rest, lambda response: respond(self._without_prompt(response)))

    async def _go_on(self, request: InferenceRequest, said: str, made: int) -> InferenceRequest | None:
        """The inference that goes on after such a text, of so many tokens; None where there is no room for more."""
        (prompt,) = self._inferences.prompts
        most = None if prompt.max_tokens is None else prompt.max_tokens - made
        if most is not None and most <= 0:
            return None
        further = replace(prompt, text=prompt.text + said, token_ids=None)
        try:
            further = await trio.to_thread.run_sync(
                lambda: measured(self._text, further, max_tokens=most, default=None, fits_context=True)
            )
        except FieldError as error:
            if error.code != CONTEXT_EXCEEDED:
                raise
            return None
        seed = seed_of(self._body, self._inferences.requests.index(request))
        rest = self._inferences.encoder_of(further, made).request(further.text, seed, further.token_ids)
        rest.priority = request.priority
        rest.gen_ai, rest.origin, rest.charge = request.gen_ai, request.origin, request.charge
        return rest

    def _size(self, part: TextPart) -> int:
        if part.output_tokens or not part.text or self._text.tokenizer is None:
            return part.output_tokens
        return len(self._text.tokenizer.encode(part.text, add_special_tokens=False))

    def _response(self, request: InferenceRequest, text: str, finish_reason: str = "") -> InferenceResponse:
        names = self._text.names
        texts = {names.text_output: text, names.finish_reason: finish_reason}
        outputs = [Tensor(name, DataType.BYTES, (1,), encode_bytes_elements([each])) for name, each in texts.items()]
        return InferenceResponse(request.model_name, 1, outputs, request.id, is_final=False)

    def _without_prompt(self, response: InferenceResponse) -> InferenceResponse:
        """What it says of its prompt is not what the client has asked."""
        response.outputs = [each for each in response.outputs if each.name != self._text.names.num_input_tokens]
        response.parameters = {key: each for key, each in response.parameters.items() if key != "cached_tokens"}
        return response
