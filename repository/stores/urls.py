"""The URLs of repositories in object stores, in Triton's forms.

`s3://bucket/path`, `s3://host:port/bucket/path`, `s3://https://host:port/bucket/path`, `gs://bucket/path`,
`as://account/container/path`. Source: Triton's model repository documentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FORMS = {
    "s3": "s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path",
    "gs": "gs://bucket/path",
    "as": "as://account/container/path",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_S3_ENDPOINT = re.compile(r"(?:(?P<scheme>https?)://(?P<host>[^/]+)|(?P<bare>[^/:]+:[0-9]+))(?:/|$)")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A place in a store. `path` has no `/` at its ends and may be empty.

    Attributes:
        scheme: "s3", "gs" or "as".
        bucket: the bucket; in Azure's words the container.
        endpoint: `http(s)://host[:port]` of a store that is not the cloud's own.
        account: Azure's storage account.
    """

    scheme: str
    bucket: str
    path: str = ""
    endpoint: str = ""
    account: str = ""

    def __str__(self) -> str:
        endpoint = self.endpoint.removeprefix("http://")  # as Triton writes it
        parts = (endpoint if self.scheme == "s3" else self.account, self.bucket, self.path)
        return f"{self.scheme}://{'/'.join(part for part in parts if part)}"


def is_store_url(text: str) -> bool:
    """Whether a repository is named by a URL and not by a path; the scheme may be one that nothing here speaks."""
    return _SCHEME.match(text) is not None


def parse_store_url(text: str) -> StoreUrl:
    """Raises ValueError with what was expected."""
    match = _SCHEME.match(text)
    scheme = match.group(1).lower() if match else ""
    if match is None or scheme not in FORMS:
        raise ValueError(f"expected a directory, or one of {'; '.join(FORMS.values())}")
    rest, endpoint, account = text[match.end() :], "", ""
    if any(mark in rest for mark in "?#@\\") or not rest.isprintable():
        raise ValueError(f"expected {FORMS[scheme]}, without user, query or fragment")
    if scheme == "s3" and (found := _S3_ENDPOINT.match(rest)):
        endpoint = f"{found['scheme'] or 'http'}://{found['host'] or found['bare']}"
        rest = rest[found.end() :]
    elif scheme == "as":
        account, _, rest = rest.partition("/")
        if "." in account:
            account, endpoint = account.partition(".")[0], f"https://{account}"
    bucket, *parts = [part for part in rest.split("/") if part] or [""]
    if rest.startswith("/") or not bucket or ":" in bucket or (scheme == "as" and not account):
        raise ValueError(f"expected {FORMS[scheme]}")
    if "." in parts or ".." in parts:
        raise ValueError("expected a path without '.' and '..' as parts of it")
    return StoreUrl(scheme, bucket, "/".join(parts), endpoint, account)
