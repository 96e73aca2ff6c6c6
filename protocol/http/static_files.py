"""Files of the pages that this server has for people: from the package, with entity tags, under a strict policy.

The policy lets a page load and call nothing but this server, and no script is ever made of text (Trusted Types).
Nothing is inline: neither scripts nor styles.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from importlib import resources

import trio

from protocol.http.codec.compression import choose_encoding
from protocol.http.exchange import HttpRequest
from protocol.http.reply import Headers, Reply

HTML = "text/html; charset=utf-8"
SCRIPT = "text/javascript; charset=utf-8"
STYLE = "text/css; charset=utf-8"

# What all pages have in common: by name the package whose folder `assets` has the file, and what it is.
PAGE_PARTS: Mapping[str, tuple[str, str]] = {
    "api.js": ("protocol.http.page_parts", SCRIPT),
    "common.js": ("protocol.http.page_parts", SCRIPT),
    "pages.css": ("protocol.http.page_parts", STYLE),
    "standalone.module.js": ("protocol.http.page_parts", SCRIPT),
}

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

_HEADERS: Headers = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)
# Smaller ones are sent as they are.
_LEAST_COMPRESSED = 1024


async def file_reply(
    request: HttpRequest, package: str, file: str, content_type: str, policy: str = CONTENT_SECURITY_POLICY
) -> Reply:
    """A file in the folder `assets` of a package, compressed where the client can inflate it."""
    stored = await trio.to_thread.run_sync(_read, package, file)
    headers: Headers = ((b"content-type", content_type.encode()), (b"vary", b"accept-encoding"))
    body = stored
    if len(stored) >= _LEAST_COMPRESSED and choose_encoding(request.headers.get(b"accept-encoding")) == "gzip":
        headers = (*headers, (b"content-encoding", b"gzip"))
        body = await trio.to_thread.run_sync(gzip.compress, stored)
    return tagged_reply(request, headers, body, entity_tag(hashlib.sha256(stored).hexdigest()), policy)


def tagged_reply(
    request: HttpRequest, headers: Headers, body: bytes, tag: bytes, policy: str = CONTENT_SECURITY_POLICY
) -> Reply:
    """The body stays in a reply of status 304: it is not sent, but its length is told as for 200 (RFC 9110, 8.6)."""
    known = request.headers.get(b"if-none-match", b"")
    is_known = known.strip() == b"*" or tag in (entry.strip() for entry in known.split(b","))
    own: Headers = ((b"content-security-policy", policy.encode()), (b"etag", tag))
    return Reply(304 if is_known else 200, (*headers, *_HEADERS, *own), body)


def entity_tag(digest: str) -> bytes:
    """Weak, as the content is the same in every coding."""
    return b'W/"%s"' % digest[:32].encode()


def _read(package: str, file: str) -> bytes:
    return resources.files(package).joinpath("assets", file).read_bytes()
