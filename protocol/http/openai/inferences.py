"""The inferences of one call of chat or completions: one for each choice, those of one prompt after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from protocol.gen_ai import Generated
from protocol.http.openai.call import TOKENIZE_IN_THREAD_ABOVE, Call, queue_priority
from protocol.http.openai.choice import TOOL_CALLS, ChoiceText
from protocol.http.openai.codec.chunks import Usage
from protocol.http.openai.codec.requests import SamplingFields
from protocol.http.openai.codec.sampling import stop_strings, wanted_logprobs
from protocol.http.openai.codec.tensors import PromptEncoder, input_of
from protocol.http.openai.errors import FieldError
from protocol.http.openai.observation import observe, operation_of, requested_of
from protocol.http.openai.prompts import Prompt
from protocol.http.openai.usage import estimate, total_usage
from protocol.messages import InferenceRequest
from protocol.text.model import TextModel
from protocol.text.stop_strings import StopStrings

# Of one call: each is a request that runs at once, or waits in the model's queue.
MAX_INFERENCES = 1024
# A parameter of requests to engines; other models do not know it.
_RETURN_DETAILS = "return_details"


@dataclass(frozen=True, slots=True)
class Inferences:
    """`choices` hold what comes of `requests`, in their order. `encoder_of` makes such requests for another prompt,
    which goes on after so many tokens of the answer."""

    prompts: Sequence[Prompt]
    requests: Sequence[InferenceRequest]
    choices: Sequence[ChoiceText]
    encoder_of: Callable[[Prompt, int], PromptEncoder]

    async def usage(self, text: TextModel) -> Usage | None:
        """Once all have ended."""
        texts = sum(len(choice.kept) for choice in self.choices)
        if texts > TOKENIZE_IN_THREAD_ABOVE or any(len(each.text) > TOKENIZE_IN_THREAD_ABOVE for each in self.prompts):
            return await trio.to_thread.run_sync(total_usage, text, self.prompts, self.choices)
        return total_usage(text, self.prompts, self.choices)

    def tokens(self) -> float:
        """What they have come to, when they have ended or were given up; estimated where that would take long."""
        first_of_prompts = self.choices[:: len(self.choices) // len(self.prompts)]
        asked = sum(
            choice.input_tokens or (estimate(prompt.text) if prompt.size is None else prompt.size)
            for prompt, choice in zip(self.prompts, first_of_prompts, strict=True)
        )
        return asked + sum(choice.output_tokens or estimate(choice.kept) for choice in self.choices)

    def generated(self) -> Generated | None:
        """What they have come to, as far as the model counts; None before all have ended."""
        if not all(choice.finish_reason for choice in self.choices):
            return None
        first_of_prompts = self.choices[:: len(self.choices) // len(self.prompts)]
        return Generated(
            sum(choice.input_tokens for choice in first_of_prompts) or None,
            sum(choice.output_tokens for choice in self.choices) or None,
            tuple(TOOL_CALLS if choice.ends_with_calls else choice.finish_reason for choice in self.choices),
        )


def plan_inferences(
    call: Call,
    body: SamplingFields,
    prompts: Sequence[Prompt],
    sampling: Mapping[str, Any],
    *,
    wants_details: bool = False,
    in_pieces: bool = False,
) -> Inferences:
    """With `in_pieces` the texts come as those of a stream, whatever the client wants. With `wants_details` a choice
    knows which stop string has ended it, since the model leaves them in the text, and how many tokens of its prompt
    were cached, if the model says so.

    Raises:
        FieldError: the model cannot do what a field asks for, or there are too many inferences.
    """
    core, target = call.request.core, call.target
    text = target.text
    if not text.names.text_input:
        raise FieldError(f"model '{text.name}' generates no text", "model")
    number = body.n or 1
    if number * len(prompts) > MAX_INFERENCES:
        raise FieldError(
            f"'prompt': expected at most {MAX_INFERENCES} choices of all prompts, got {number * len(prompts)}", "prompt"
        )
    metadata = core.model_metadata(target.model)
    inputs = {each.name: each for each in metadata.inputs}
    is_counted = text.names.num_output_tokens in {each.name for each in metadata.outputs}
    finds_stops = text.names.sampling_parameters in inputs or input_of(inputs, "stop") is not None
    stops = stop_strings(body) if wants_details or not finds_stops else []
    if wants_details and stops and text.names.sampling_parameters in inputs:
        sampling = {**sampling, "include_stop_str_in_output": True}
    details = {_RETURN_DETAILS: True} if wants_details else {}
    priority = queue_priority(body.priority)
    requests: list[InferenceRequest] = []
    choices: list[ChoiceText] = []

    def encoder_of(prompt: Prompt, made: int = 0) -> PromptEncoder:
        return PromptEncoder(
            text,
            metadata,
            _completed(sampling, prompt, target.adapter, made),
            stream=bool(body.stream) or in_pieces,
            return_logprobs=wanted_logprobs(body) is not None,
            parameters={"add_special_tokens": prompt.adds_special_tokens, **details},
            request_id=call.id,
            images=prompt.images,
        )

    for prompt in prompts:
        encoder = encoder_of(prompt)
        for place in range(number):
            request = encoder.request(prompt.text, seed_of(body, place), prompt.token_ids)
            request.priority = priority
            requests.append(request)
            watcher = StopStrings(stops, include=bool(body.include_stop_str_in_output)) if stops else None
            choices.append(ChoiceText(watcher, prompt.max_tokens, keeps=not is_counted and text.tokenizer is not None))
    inferences = Inferences(prompts, requests, choices, encoder_of)
    call.charge(requests, inferences.tokens)
    observe(call, operation_of(body), requests, requested_of(body), inferences.generated)
    return inferences


def seed_of(body: SamplingFields, place: int) -> int | None:
    """That of a choice of a prompt, where it is not the body's own."""
    return None if body.seed is None or not place else body.seed + place


def _completed(sampling: Mapping[str, Any], prompt: Prompt, adapter: str, made: int) -> dict[str, Any]:
    completed = dict(sampling)
    if made and "min_tokens" in completed:
        completed["min_tokens"] = max(0, completed["min_tokens"] - made)
    if prompt.max_tokens is not None:
        completed["max_tokens"] = prompt.max_tokens
    if adapter:
        completed["lora_name"] = adapter
    return completed
