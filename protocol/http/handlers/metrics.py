"""Handler of `/metrics` on the HTTP port and on that of OpenAI's interface."""

from __future__ import annotations

from protocol.errors import Unsupported
from protocol.http.exchange import HttpRequest
from protocol.http.metrics_page import metrics_reply
from protocol.http.reply import Reply


async def metrics(request: HttpRequest) -> Reply:
    """As on the metrics port.

    Raises:
        Unsupported: the server shows none.
    """
    text = request.services.metrics
    if text is None:
        raise Unsupported("the server has no metrics")
    return await metrics_reply(text, request.headers)
