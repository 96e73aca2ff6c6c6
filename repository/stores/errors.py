"""Object store errors, translated from the library's error texts.

The library's errors carry the store's answer only as text, so the text is read here and nowhere else.
"""

from __future__ import annotations

import re

from protocol.errors import Internal, InvalidArgument, NotFound, ServerError, Unavailable
from repository.stores.urls import StoreUrl

# Queries of addresses may carry signatures. What opens and closes an answer's XML declaration is none.
_QUERY = re.compile(r"\?(?!xml\b|>)[^\s,)]*")
_STATUS = re.compile(r"status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})")
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
_WRONG_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_BUCKET_WORD = {"s3": "bucket", "gs": "bucket", "as": "container"}
# What is asked for the identity of a machine where no other credentials are given.
_IDENTITY_SERVICES = ("//169.254.", "/latest/api/token", "/latest/meta-data", "/computeMetadata/", "/metadata/identity")
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "as": "AZURE_STORAGE_KEY",
}


class AccessDenied(Unavailable):
    """The store knows no such key, or does not let it do this; by another key it may."""


class ObjectChanged(Unavailable):
    """The object is another one than was listed."""


def store_error(error: Exception, url: StoreUrl, doing: str) -> ServerError:
    """The error as one of ours.

    Args:
        doing: what was tried, with the object's key where there is one: "list 'models/'".
    """
    text = _QUERY.sub("", str(error))
    status = int(found.group(1)) if (found := _STATUS.search(text)) else 0
    code = found.group(1) if (found := _CODE.search(text)) else ""
    said = _said(text, status, code)
    place = f"{url}: cannot {doing}"
    bucket = f"{_BUCKET_WORD[url.scheme]} '{url.bucket}'"
    name = type(error).__name__
    if code in _NO_BUCKET or (status == 404 and not code and doing.startswith("list")):
        return NotFound(f"{place}: there is no {bucket}{said}")
    if name == "FileNotFoundError" or status == 404:
        return NotFound(f"{place}: there is no such object in {bucket}{said}")
    if code in _WRONG_REGION or "redirect without LOCATION" in text:
        return InvalidArgument(
            f"{place}: {bucket} lies in another region{said}; set AWS_DEFAULT_REGION or the credential file's region"
        )
    if any(part in text for part in _IDENTITY_SERVICES):
        return AccessDenied(f"{place}: no credentials were found; set {_CREDENTIALS[url.scheme]}, or a credential file")
    if status in (401, 403) or name in ("PermissionDeniedError", "UnauthenticatedError"):
        return AccessDenied(f"{place}: access to {bucket} was denied{said}; see {_CREDENTIALS[url.scheme]}")
    if name == "PreconditionError":
        return ObjectChanged(f"{place}: the object has changed since it was listed")
    if name == "InvalidPathError":
        return InvalidArgument(
            f"{place}: {text.splitlines()[0]}; expected keys without '//' and without '.' and '..' as parts"
        )
    if status == 429 or status >= 500 or "HTTP error" in text or "error sending request" in text:
        return Unavailable(f"{place}: the store did not answer as it should{said or _transport(text)}")
    return Internal(f"{place}: {text.splitlines()[0] if text else name}")


def _said(text: str, status: int, code: str) -> str:
    """The store's own words, in brackets."""
    message = found.group(1).strip() if (found := _MESSAGE.search(text)) else ""
    message = message.partition("\n")[0]  # Azure adds identifiers
    words = [f"status {status}" if status else "", code, message]
    joined = ", ".join(word for word in words if word)
    return f" ({joined})" if joined else ""


def _transport(text: str) -> str:
    kind = next((word for word in ("TimedOut", "Timeout", "Connect", "Decode", "Interrupted") if f"{word}" in text), "")
    why = {
        "TimedOut": "it took too long",
        "Timeout": "it took too long",
        "Connect": "its certificate is not trusted" if "InvalidCertificate" in text else "no connection",
    }.get(kind, "the connection broke")
    return f" ({why})"
