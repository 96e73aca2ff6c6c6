"""Flags of the OpenAI interface, which the HTTP edge serves. Part of `trioton.settings`."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.http.settings import OpenAISettings
from trioton.edge_flags import EdgeFlags
from trioton.flags import STRING, flag

OPENAI = "OpenAI"

_edge = EdgeFlags(OPENAI)


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have two such parts
class OpenAIFlags:
    """The part of the settings that is about the OpenAI interface."""

    openai_strict: bool = _edge.on_off(
        False, "Refuse unknown fields of requests to /v1, and what does not fit with status 422, as Triton's frontend."
    )
    openai_default_max_tokens: int = _edge.count(
        0,
        "The most tokens of an answer whose request does not say; 0 is all that the context has room for. "
        "Triton's frontend has 16.",
        minimum=0,
    )
    openai_lora_separator: str = flag(
        "",
        str,
        group=OPENAI,
        metavar=STRING,
        help="What stands between a model's name and its adapter's; without it adapters have names of their own.",
    )
    openai_keep_alive: int = _edge.milliseconds(
        15_000, "How long a stream may be silent before a comment is sent, for proxies that cut such.", minimum=1
    )
    openai_store_bytes: int = _edge.count(
        64 << 20,
        "The most bytes that are kept of the answers of /v1/responses, for clients to come back to; 0 keeps none.",
        minimum=0,
    )
    openai_store_secs: int = _edge.count(86_400, "How many seconds they are kept at most.")

    def openai(self) -> OpenAISettings:
        return OpenAISettings(
            strict=self.openai_strict,
            default_max_tokens=self.openai_default_max_tokens or None,
            lora_separator=self.openai_lora_separator,
            keep_alive=self.openai_keep_alive / 1000,
        )
