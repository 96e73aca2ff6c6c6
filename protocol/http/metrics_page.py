"""The page of metrics, in the format and the coding that a scraper asks for. Source: RFC 9110, section 12.5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.http.codec.compression import IDENTITY, choose_encoding
from protocol.http.reply import TEXT_CONTENT, Headers, Reply
from protocol.metrics_text import MetricsText

_OPENMETRICS_CONTENT: Headers = ((b"content-type", b"application/openmetrics-text; version=1.0.0; charset=utf-8"),)
_VARY: Headers = ((b"vary", b"accept, accept-encoding"),)
_OPENMETRICS = "application/openmetrics-text"
_PLAIN = ("text/plain", "text/*", "*/*")


async def metrics_reply(metrics: MetricsText, headers: Mapping[bytes, bytes]) -> Reply:
    """By `Accept` and `Accept-Encoding`."""
    is_openmetrics = asks_openmetrics(headers.get(b"accept"))
    coding = choose_encoding(headers.get(b"accept-encoding"))
    coded: Headers = () if coding == IDENTITY else ((b"content-encoding", coding.encode()),)
    body = await metrics.text(is_openmetrics=is_openmetrics, coding="" if coding == IDENTITY else coding)
    content = _OPENMETRICS_CONTENT if is_openmetrics else TEXT_CONTENT
    return Reply(headers=(*content, *_VARY, *coded), body=body)


def asks_openmetrics(accept: bytes | None) -> bool:
    """Whether OpenMetrics is named, with a weight that is no lower than that of plain text."""
    openmetrics = plain = 0.0
    for entry in (accept or b"").decode("latin-1").lower().split(","):
        media, *options = (part.strip() for part in entry.split(";"))
        if media == _OPENMETRICS:
            openmetrics = max(openmetrics, _weight(options))
        elif media in _PLAIN:
            plain = max(plain, _weight(options))
    return 0 < openmetrics >= plain


def _weight(options: Sequence[str]) -> float:
    for option in options:
        if option.startswith("q="):
            try:
                return float(option[2:])
            except ValueError:
                return 0.0
    return 1.0
