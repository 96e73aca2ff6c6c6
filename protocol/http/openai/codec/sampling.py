"""Sampling parameters: from the fields of a request to those of Triton's vLLM backend, by vLLM's names. Pure."""

from __future__ import annotations

from typing import Any

from protocol.errors import shown_value
from protocol.http.openai.codec.requests import ChatRequest, CompletionRequest, SamplingFields
from protocol.http.openai.errors import FieldError

# Fields that go on as they are, where they are given.
_PASSED_ON = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "length_penalty",
    "seed",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "bad_words",
    "allowed_token_ids",
    "logit_bias",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


def sampling_parameters(request: SamplingFields) -> dict[str, Any]:
    """Without `max_tokens`, which depends on the prompt; without what tools need.

    Raises:
        FieldError: fields exclude each other, or a `response_format` is of no kind that there is.
    """
    found = {name: value for name in _PASSED_ON if (value := getattr(request, name)) is not None}
    if stops := stop_strings(request):
        found["stop"] = stops
    if request.best_of is not None and request.best_of > 1 and request.best_of != (request.n or 1):
        found["best_of"] = request.best_of
    if (structure := _structure(request)) is not None:
        found["structured_outputs"] = structure
    if (logprobs := wanted_logprobs(request)) is not None:
        found["logprobs"] = logprobs
    return found


def stop_strings(request: SamplingFields) -> list[str]:
    stop = request.stop
    return [stop] if isinstance(stop, str) else list(stop or ())


def wanted_logprobs(request: SamplingFields) -> int | None:
    """How many alternatives are wanted beside the token that was taken; None for no logprobs at all."""
    if isinstance(request, ChatRequest):
        if not request.logprobs:
            if request.top_logprobs:
                raise FieldError("`top_logprobs` can only be used when `logprobs` is True", "top_logprobs")
            return None
        return request.top_logprobs or 0
    return request.logprobs if isinstance(request, CompletionRequest) else None


def check_stream_options(request: SamplingFields) -> None:
    if request.stream_options is not None and not request.stream:
        raise FieldError("`stream_options` can only be used when `stream` is True", "stream_options")


def _structure(request: SamplingFields) -> dict[str, Any] | None:
    """What the output has to be, as vLLM's `structured_outputs`."""
    given: dict[str, dict[str, Any]] = {}
    if request.structured_outputs:
        given["structured_outputs"] = request.structured_outputs
    for name, key in _GUIDED.items():
        if (value := getattr(request, name)) is not None:
            given[name] = {key: value}
    if request.response_format and (form := _response_format(request.response_format)) is not None:
        given["response_format"] = form
    if len(given) > 1:
        names = ", ".join(f"'{name}'" for name in given)
        raise FieldError(f"{names} exclude each other", next(iter(given)))
    return next(iter(given.values()), None)


def _response_format(form: dict[str, Any]) -> dict[str, Any] | None:
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            schema = form.get("json_schema")
            if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
                raise FieldError(
                    "'response_format.json_schema.schema': expected an object, a JSON schema",
                    "response_format.json_schema.schema",
                )
            return {"json": schema["schema"]}
        case kind:
            raise FieldError(
                f"'response_format.type': expected 'text', 'json_object' or 'json_schema', got {shown_value(kind)}",
                "response_format.type",
            )
