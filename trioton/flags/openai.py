# ruff: noqa: RUF009 (the defaults are fields, made by functions)
"""Flags of the OpenAI interface: its port, its own restrictions, and what models without their own have.

Part of `trioton.settings`. Triton's OpenAI frontend is a program with flags of its own: `trioton.openai_frontend`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from protocol.access.restricted import OPENAI_API, Restriction
from protocol.http.settings import Interface, OpenAISettings
from protocol.media.fetcher import MediaSettings
from protocol.outgoing.hosts import HostRule
from protocol.text.output_parser import TOOL_PARSERS
from repository.text_files import TOKENIZER
from repository.text_models import TextDefaults
from trioton.flags.edge import EdgeFlags, check_restrictions
from trioton.flags.fields import (
    BOOLEAN,
    INTEGER,
    PATH,
    STRING,
    UsageError,
    boolean,
    choice,
    filesystem_path,
    flag,
    port,
    repeatable,
)

OPENAI = "OpenAI"

_edge = EdgeFlags(OPENAI)


def tokenizer_folder(text: str) -> Path | None:
    """Raises ValueError: there is no tokenizer. Names of a hub are not fetched."""
    if not text:
        return None
    folder = Path(text)
    if not os.path.isfile(folder / TOKENIZER):
        raise ValueError(f"expected a folder with {TOKENIZER}; names on a hub are not fetched, so download it first")
    return folder.absolute()


def chat_template(text: str) -> str:
    """The absolute path of a file, or a template. Raises ValueError."""
    if not text or "{" in text or "\n" in text:
        return text
    if not os.path.isfile(text):
        raise ValueError("expected a file with a chat template, or the template itself")
    return os.path.abspath(text)


def tool_parser(text: str) -> str:
    """The name of a parser for calls of tools, or nothing. Raises ValueError."""
    return choice(*TOOL_PARSERS)(text) if text else ""


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
    openai_lora_path: tuple[Path, ...] = repeatable(
        filesystem_path,
        group=OPENAI,
        metavar=PATH,
        help="A folder of LoRA adapters, which clients may load and unload by their paths, and with them those in the "
        "model's own folder. May be given several times. Without it they may not.",
    )
    openai_sleep_mode: bool = _edge.on_off(
        False, "Let clients put models with engines to sleep, which frees their memory, and wake them."
    )
    openai_keep_alive: int = _edge.milliseconds(
        15_000, "How long a stream may be silent before a comment is sent, for proxies that cut such.", minimum=1
    )
    openai_max_json_values: int = _edge.count(
        400_000,
        "The most values in the JSON of a body of more than 256 kB: a text, a number or a picture is one, a list or an "
        "object counts as four. They are made in one go, which holds up all other requests, here for up to 20 ms.",
        minimum=1000,
    )
    openai_store_bytes: int = _edge.count(
        64 << 20,
        "The most bytes that are kept of the answers of /v1/responses, for clients to come back to; 0 keeps none.",
        minimum=0,
    )
    openai_store_secs: int = _edge.count(86_400, "How many seconds they are kept at most.")

    openai_allowed_media_domains: tuple[HostRule, ...] = repeatable(
        HostRule.parse,
        group=OPENAI,
        metavar="<host>[:<port>]",
        help="A host that pictures are fetched from when a client names them by http or https, *.<domain> for all "
        "within one, or * for any. May be given several times; without it nothing is fetched. An address that is not "
        "public is asked only if its host is named.",
        aliases=("allowed-media-domains",),
    )
    openai_media_max_bytes: int = _edge.count(16 << 20, "The most bytes of a picture that is fetched.")
    openai_media_timeout: int = _edge.milliseconds(5000, "How long a picture may take to be fetched.", minimum=1)

    openai_port: int | None = flag(
        None,
        port,
        group=OPENAI,
        metavar=INTEGER,
        help="A port for the OpenAI routes alone, with /metrics, as Triton's frontend has it (9000 there). Without it "
        "they are on the HTTP port only.",
    )
    openai_address: str = flag(
        "", str, group=OPENAI, metavar=STRING, help="The address to listen on; where absent, that of HTTP."
    )
    openai_on_http_port: bool = flag(
        True, boolean, group=OPENAI, metavar=BOOLEAN, help="Serve the OpenAI routes on the HTTP port, too."
    )
    openai_restricted_api: tuple[Restriction, ...] = _edge.restrictions(
        OPENAI_API,
        metavar="<api>[,<api>]:<header>=<value>",
        help="Calls on the OpenAI port that need a header with this value: inference, model-repository, metrics, "
        "health. Needs --openai-on-http-port=false, where they would be open.",
    )
    openai_tokenizer: Path | None = flag(
        None,
        tokenizer_folder,
        group=OPENAI,
        metavar=PATH,
        help=f"The folder of the {TOKENIZER} of models that have none of their own.",
    )
    openai_chat_template: str = flag(
        "",
        chat_template,
        group=OPENAI,
        metavar=PATH,
        help="A file, or the template of models whose configuration names none, in place of their tokenizer's.",
    )
    openai_tool_call_parser: str = flag(
        "",
        tool_parser,
        group=OPENAI,
        metavar="<parser>",
        help=f"How models write calls of tools whose configuration does not say: {', '.join(TOOL_PARSERS)}.",
    )

    def check_openai(self) -> None:
        """Raises UsageError for what cannot be served, or would be open where it is restricted."""
        check_restrictions("--openai-restricted-api", self.openai_restricted_api, OPENAI_API)
        if self.openai_restricted_api and self.openai_port is None:
            raise UsageError("--openai-restricted-api needs --openai-port, whose calls it restricts")
        if self.openai_restricted_api and self.openai_on_http_port:
            raise UsageError(
                "--openai-restricted-api restricts calls on --openai-port, which would be open on the HTTP port: set "
                "--openai-on-http-port=false"
            )

    def http_interface(self) -> Interface:
        """What the HTTP port serves."""
        return Interface.ALL if self.openai_on_http_port else Interface.INFERENCE

    def text_defaults(self) -> TextDefaults:
        """For models that say nothing themselves."""
        return TextDefaults(self.openai_tokenizer, self.openai_chat_template, self.openai_tool_call_parser)

    def media(self) -> MediaSettings | None:
        """How pictures are fetched, if they are."""
        hosts = self.openai_allowed_media_domains
        timeout = self.openai_media_timeout / 1000
        return MediaSettings(hosts, self.openai_media_max_bytes, timeout) if hosts else None

    def openai(self) -> OpenAISettings:
        return OpenAISettings(
            strict=self.openai_strict,
            default_max_tokens=self.openai_default_max_tokens or None,
            lora_separator=self.openai_lora_separator,
            sleep_mode=self.openai_sleep_mode,
            keep_alive=self.openai_keep_alive / 1000,
            max_json_values=self.openai_max_json_values,
        )
