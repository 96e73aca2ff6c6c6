"""The routes of Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator

from protocol.access.categories import Category
from protocol.http.anthropic import handlers as anthropic
from protocol.http.anthropic.errors import REQUEST_ID, anthropic_error_reply
from protocol.http.route import Route
from protocol.http.route_table import Forms

ANTHROPIC_FORMS: Forms = ((b"/v1/messages/", anthropic_error_reply, REQUEST_ID),)


def anthropic_routes() -> Iterator[Route]:
    for path, handler, summary, is_inference in (
        ("/v1/messages", anthropic.messages, "The next message of a chat, as Anthropic has it", True),
        ("/v1/messages/count_tokens", anthropic.count_tokens, "The tokens of messages", False),
    ):
        yield Route(
            "POST",
            path,
            Category.INFERENCE,
            handler,
            summary,
            is_inference=is_inference,
            error_form=anthropic_error_reply,
            key_header="x-api-key",
            request_id_header=REQUEST_ID,
        )
