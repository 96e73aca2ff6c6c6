"""Which URLs name a place in a store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repository.stores.urls import StoreUrl, is_store_url, parse_store_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/models", StoreUrl("s3", "bucket", "models")),
        ("s3://bucket", StoreUrl("s3", "bucket")),
        ("S3://bucket/a//b/", StoreUrl("s3", "bucket", "a/b")),
        ("s3://localhost:9000/bucket/a/b", StoreUrl("s3", "bucket", "a/b", "http://localhost:9000")),
        ("s3://http://10.0.0.1:9000/bucket", StoreUrl("s3", "bucket", "", "http://10.0.0.1:9000")),
        ("s3://https://store.example:443/bucket/a", StoreUrl("s3", "bucket", "a", "https://store.example:443")),
        ("s3://https://store.example/bucket/a", StoreUrl("s3", "bucket", "a", "https://store.example")),
        ("gs://bucket/models", StoreUrl("gs", "bucket", "models")),
        ("gs://example.com/models", StoreUrl("gs", "example.com", "models")),
        ("as://account/container/models/x", StoreUrl("as", "container", "models/x", "", "account")),
        (
            "as://account.blob.core.windows.net/container",
            StoreUrl("as", "container", "", "https://account.blob.core.windows.net", "account"),
        ),
    ],
)
def test_forms(text: str, expected: StoreUrl) -> None:
    assert parse_store_url(text) == expected
    assert is_store_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://",
        "s3:///models",
        "s3://host:9000",
        "s3://host:9000/",
        "s3://https://host:9000",
        "gs://host:9000/bucket",
        "gs://",
        "as://account",
        "as:///container",
        "s3://user:secret@host:9000/bucket",
        "s3://bucket/models?versionId=1",
        "s3://bucket/a/../b",
        "s3://bucket/a\nb",
        "https://bucket/models",
        "file:///models",
    ],
)
def test_refused(text: str) -> None:
    """And what was given is not told: it may hold a secret."""
    with pytest.raises(ValueError, match="expected") as raised:
        parse_store_url(text)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("text", ["models", "/models", "./s3", "C:/models", "s3:/bucket", ""])
def test_paths_are_no_urls(text: str) -> None:
    assert not is_store_url(text)


_PART = st.from_regex(r"[a-z0-9][a-z0-9-]{2,8}", fullmatch=True)


@pytest.mark.slow
@given(
    st.sampled_from(["s3", "gs", "as"]),
    _PART,
    st.lists(_PART, max_size=3).map("/".join),
    st.sampled_from(["", "http://host:9000", "https://host:443"]),
    _PART,
)
def test_its_text_names_the_same_place(scheme: str, bucket: str, path: str, endpoint: str, account: str) -> None:
    url = StoreUrl(scheme, bucket, path, endpoint if scheme == "s3" else "", account if scheme == "as" else "")
    assert parse_store_url(str(url)) == url
