"""Sampling fields of a request, with the names of OpenAI and vLLM, checked and made into an engine's `Sampling`. Pure.

Every field is honoured by the engine or refused by its name: `check_features` compares what is asked for with what the
engine says it has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backends.engines.worker.trioton_engine.engine import EngineInfo, Sampling, Structure
from protocol.errors import InvalidArgument, InvalidField, shown_name

# Where msgspec has found an error.
_PLACE = re.compile(r"(?P<text>.*) - at (?:`key` in )?`\$\.(?P<path>(?P<field>\w+).*)`", re.DOTALL)
_INT32 = 1 << 31
Count = Annotated[int, Meta(ge=0, lt=_INT32)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0, lt=_INT32)]
Texts = Annotated[tuple[str, ...], Meta(max_length=64)]

# The members of `structured_outputs`, in vLLM's names.
STRUCTURES = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class SamplingFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields as they come; None stands for what was not asked for."""

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=_INT32)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, lt=_INT32)] | None = None
    min_tokens: Count | None = None
    stop: str | Texts | None = None
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=256)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    seed: int | None = None  # any that fits into 64 bits
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    ignore_eos: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=1000)] | None = None
    logit_bias: Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] | None = None
    bad_words: Texts | None = None
    structured_outputs: dict[str, Any] | str | None = None
    guided_decoding: dict[str, Any] | str | None = None
    lora_name: str | None = None
    priority: Annotated[int, Meta(ge=-_INT32, lt=_INT32)] | None = None
    # Only these values of them are served.
    n: int | None = None
    best_of: int | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = None
    detokenize: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        stop = self.stop
        return () if not stop else (stop,) if isinstance(stop, str) else stop


_ONLY: Mapping[str, Collection[Any]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "prompt_logprobs": (None, 0),
    "use_beam_search": (None, False),
    "detokenize": (None, True),
    "spaces_between_special_tokens": (True,),
}
# Those that go to the engine as they are.
_SAME = (
    *("min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "stop_token_ids", "ignore_eos", "logprobs", "logit_bias", "bad_words"),
)
# Values with which a field has no effect, so that any engine honours them.
_WITHOUT_EFFECT: Mapping[str, Collection[Any]] = {
    "min_tokens": (0,),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "bad_words": ((),),
    "stop_token_ids": ((),),
}


def parse_sampling(values: Mapping[str, Any], where: str) -> SamplingFields:
    """The fields, each in its range; texts are read as numbers where those are wanted. Raises InvalidArgument."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        fields = msgspec.convert(given, SamplingFields, strict=False)
    except msgspec.ValidationError as error:
        text, param = _readable(str(error))
        raise InvalidField(f"{where}: sampling_parameters: {text}", param) from None
    if fields.seed is not None and not -(1 << 63) <= fields.seed < 1 << 64:
        text = f"{where}: sampling_parameters: seed: expected an integer of 64 bits, got {fields.seed}"
        raise InvalidField(text, "seed")
    for name, served in _ONLY.items():
        if (value := getattr(fields, name)) not in served:
            raise InvalidField(f"{where}: sampling_parameters: {name} {value} is not supported", name)
    return fields


def _readable(text: str) -> tuple[str, str]:
    """msgspec's text, with the field in front, and the field."""
    found = _PLACE.fullmatch(text)
    if found is None:
        return text, ""
    return f"{found['path']}: {found['text']}", found["field"]


def sampling_of(fields: SamplingFields, max_tokens: int, info: EngineInfo, *, engine: str, where: str) -> Sampling:
    """What the engine gets. Raises InvalidArgument for what it does not have."""
    asked: dict[str, Any] = {}
    for name in _SAME:
        value = getattr(fields, name)
        if value is None or value in _WITHOUT_EFFECT.get(name, ()):
            continue
        if name not in info.features:
            raise _not_there(name, engine, where, name)
        asked[name] = value
    if fields.logprobs is not None and fields.logprobs > info.most_logprobs:
        raise InvalidField(
            f"{where}: sampling_parameters: logprobs: engine '{engine}' reports {info.most_logprobs} of the likeliest "
            f"tokens at most, got {fields.logprobs}",
            "logprobs",
        )
    if asked.get("min_tokens", 0) > max_tokens:
        raise InvalidField(
            f"{where}: sampling_parameters: min_tokens: expected at most max_tokens, which is {max_tokens}, got "
            f"{asked['min_tokens']}",
            "min_tokens",
        )
    if fields.lora_name and "adapter" not in info.features:
        raise InvalidArgument(f"{where}: LoRA feature is not enabled.")
    structure = _structure(fields, where)
    if structure is not None:
        if f"structure.{structure.kind}" not in info.features:
            raise _not_there(f"structured_outputs.{structure.kind}", engine, where)
        asked["structure"] = structure
    return Sampling(max_tokens=max_tokens, **asked)


def _not_there(name: str, engine: str, where: str, param: str = "") -> InvalidField:
    return InvalidField(f"{where}: sampling_parameters: {name} is not supported by engine '{engine}'", param)


def _structure(fields: SamplingFields, where: str) -> Structure | None:
    given = fields.structured_outputs if fields.structured_outputs is not None else fields.guided_decoding
    if given is None:
        return None
    place = f"{where}: sampling_parameters: structured_outputs"
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidArgument(f"{place} is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidArgument(f"{place} must be a JSON object")
    asked = {name: value for name, value in given.items() if value is not None and value is not False}
    if unknown := asked.keys() - set(STRUCTURES):
        name = shown_name(min(unknown))
        raise InvalidArgument(f"{place}: {name} is not supported; known are {', '.join(STRUCTURES)}")
    if len(asked) != 1:
        raise InvalidArgument(f"{place} must have one of {', '.join(STRUCTURES)}, got {sorted(asked)}")
    [(kind, value)] = asked.items()
    return Structure(kind, _structure_text(kind, value, place))


def _structure_text(kind: str, value: Any, place: str) -> str:
    if kind == "json_object":
        return ""
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
            raise InvalidArgument(f"{place}: choice must be a list of texts")
        return json.dumps(value)
    if isinstance(value, str) and value:
        return value
    if kind in ("json", "structural_tag") and isinstance(value, dict):
        return json.dumps(value)
    raise InvalidArgument(f"{place}: {kind} must be a text, got {type(value).__name__}")
